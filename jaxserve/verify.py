"""The command `python -m jaxserve.verify kernels|logprobs [flags]`.

`kernels`: whether every kernel computes what the float64 references do. `logprobs`: `jaxserve.rollout.verify_logprobs`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import jax
from rich import box
from rich.table import Table

from jaxserve.commands import wide_console, write_json
from jaxserve.config.check import check_types
from jaxserve.config.fields import setting
from jaxserve.config.flags import OneLineParser, add_flags
from jaxserve.errors import ConfigError, JaxserveError
from jaxserve.executor.platform import choose_platform
from jaxserve.jax_settings import engine_settings
from jaxserve.rollout import verify_logprobs
from jaxserve.standard_streams import after_output
from pallas_kernels.parity.cases import DTYPES
from pallas_kernels.parity.gate import Result
from pallas_kernels.parity.operations import OPERATIONS, Operation, check_all
from pallas_kernels.registry import Target

_EXIT_FAILED = 1
_EXIT_ERROR = 2
_WIDTH = 118  # of the widest table: a pipe has no width of its own
_WRONG = ("FAIL", "ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyConfig:
    """What to verify, and where."""

    subject: Literal["kernels"] = setting(
        "kernels", "what to verify: 'kernels'; 'logprobs' has flags of its own", positional=True
    )
    device: Literal["auto", "cpu", "gpu"] = setting("auto", "where to run; 'auto' takes jax's first device")
    op: str | None = setting(None, "only this operation")
    dtype: str | None = setting(None, f"only this one of {', '.join(DTYPES)}; float8 and int8 are bfloat16 with such a cache")
    interpret: bool = setting(False, "also interpret GPU kernels on the CPU, on tiny cases (slow)")
    cases: bool = setting(False, "list every case, not only those that fail")
    json: str | None = setting(None, "also write every figure to this file, as JSON")

    def __post_init__(self) -> None:
        check_types(self)
        known = [operation.name for operation in OPERATIONS]
        if self.op is not None and self.op not in known:
            raise ConfigError(f"op: there is no {self.op!r}; there is: {', '.join(known)}", param="op")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ConfigError(f"dtype: there is no {self.dtype!r}; there is: {', '.join(DTYPES)}", param="dtype")
        dtypes = self.operations()[0].dtypes
        if self.op is not None and self.dtype is not None and self.dtype not in dtypes:
            raise ConfigError(f"dtype: {self.op} has no {self.dtype!r}; it has: {', '.join(dtypes)}", param="dtype")

    def operations(self) -> tuple[Operation, ...]:
        return tuple(operation for operation in OPERATIONS if self.op in (None, operation.name))

    def dtypes(self) -> tuple[str, ...]:
        return tuple(dtype for dtype in DTYPES if self.dtype in (None, dtype))


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == ["logprobs"]:
        return verify_logprobs.main(given[1:])
    console = wide_console(_WIDTH)
    try:
        config = VerifyConfig(**vars(_parser().parse_args(given)))
        device = _device(config.device)
        target = Target.of(device)
        with engine_settings(), jax.default_device(device):
            results = list(check_all(config.operations(), config.dtypes(), target, interpret=config.interpret))
        if config.json is not None:
            _write(Path(config.json), device, results)
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    wrong = [result for result in results if result.verdict in _WRONG]
    console.print(f"jax {jax.__version__} on {device.device_kind} ({target}); differences from the float64 references")
    console.print(_summary(results))
    listed = results if config.cases else wrong
    if listed:
        console.print(_cases(listed))
    for line in _unsupported(results):
        console.print(line, markup=False)
    console.print(f"{len(wrong)} of {len(results)} cases are wrong" if wrong else "every case passed that is supported")
    return _EXIT_FAILED if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m jaxserve.verify", description="Compare every kernel with its float64 reference.")
    add_flags(parser, VerifyConfig)
    return parser


def _device(name: str) -> jax.Device:
    choose_platform()
    try:
        return jax.devices(None if name == "auto" else name)[0]
    except RuntimeError as error:
        raise ConfigError(f"device: jax finds no {name} here", param="device") from error


def _table(*columns: str, words: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for place, column in enumerate(columns):
        text = place < words or place == len(columns) - 1
        table.add_column(column, justify="left" if text else "right", no_wrap=place < words)
    return table


def _summary(results: Sequence[Result]) -> Table:
    """One line for each implementation and dtype: the worst of its cases."""
    table = _table("operation", "implementation", "dtype", "cases", "max abs", "max rel", "cosine", "verdict", words=3)
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.operation, result.implementation, result.dtype), []).append(result)
    for names, group in groups.items():
        ran = [result for result in group if result.verdict in ("pass", "FAIL")]
        counts = Counter(result.verdict for result in group)
        verdict = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        figures = [_worst([getattr(result, figure) for result in ran]) for figure in ("max_abs", "max_rel")]
        cosine = f"{min(result.cosine for result in ran):.6f}" if ran else "-"
        table.add_row(*names, str(len(group)), *figures, cosine, verdict)
    return table


def _worst(values: Sequence[float]) -> str:
    """The largest; NaN is larger than any."""
    if not values:
        return "-"
    return "nan" if any(math.isnan(value) for value in values) else f"{max(values):.1e}"


def _cases(results: Sequence[Result]) -> Table:
    table = _table("operation", "implementation", "dtype", "case", "max abs", "max rel", "cosine", "verdict", words=4)
    for result in results:
        figures = (f"{result.max_abs:.1e}", f"{result.max_rel:.1e}", f"{result.cosine:.6f}")
        if result.verdict not in ("pass", "FAIL"):
            figures = ("-", "-", "-")
        verdict = result.verdict if result.verdict == "unsupported" or not result.reason else f"{result.verdict}: {result.reason}"
        table.add_row(result.operation, result.implementation, result.dtype, result.case, *figures, verdict)
    return table


def _unsupported(results: Sequence[Result]) -> list[str]:
    reasons = Counter(result.reason for result in results if result.verdict == "unsupported")
    return [f"not supported, {count} cases: {reason}" for reason, count in reasons.items()]


def _write(path: Path, device: jax.Device, results: Sequence[Result]) -> None:
    figures = {"jax": jax.__version__, "device": device.device_kind, "results": [asdict(result) for result in results]}
    write_json(path, figures)


if __name__ == "__main__":
    sys.exit(after_output(main()))
