"""The command `python -m jaxserve.quantize MODEL OUTPUT --scheme SCHEME [flags]`: a checkpoint of compressed-tensors."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

from jaxserve.config.check import check_types, take_several
from jaxserve.config.fields import setting
from jaxserve.config.flags import OneLineParser, add_flags
from jaxserve.engine.preparation import model_directory
from jaxserve.errors import ConfigError, JaxserveError
from jaxserve.quantization.checkpoint import nearest, open_model, write_quantized
from jaxserve.quantization.recipes import SchemeName, recipe_of
from jaxserve.quantization.selection import Selection, select

_EXIT_ERROR = 2
_EXIT_INTERRUPTED = 130
_SHOWN = 6  # modules of a reason that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeConfig:
    """What to quantize, how, and into what."""

    model: str | None = setting(None, "model directory in Hugging Face format, or 'pico' for the bundled model", positional=True)
    output: str | None = setting(None, "model directory to write; must not exist", positional=True)
    scheme: SchemeName = setting(  # noqa: RUF009 - as every field
        "fp8",
        "how matrices are stored: fp8 or int8 with a scale an output, fp8-block with one for 128 x 128; w8a8, in which"
        " activations are to be rounded too; w4a16 with a scale for a group of inputs, w4a16-asym with zero points besides",
    )
    group_size: int | None = setting(None, "inputs of a group of w4a16: 32, 64 or 128, the default")
    keep: tuple[str, ...] = setting(
        (), "modules to leave as they are: patterns as a shell has them, or regular expressions after 're:'"
    )

    def __post_init__(self) -> None:
        take_several(self, "keep")
        check_types(self)
        if self.model is None:
            raise ConfigError("model: name what to quantize", param="model")
        if self.output is None:
            raise ConfigError("output: name the directory to write", param="output")


def main(argv: Sequence[str] | None = None) -> int:
    started = time.monotonic()
    try:
        config = QuantizeConfig(**vars(_parser().parse_args(argv)))
        with _progress() as told:
            said = _run(config, told)
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    Console(highlight=False, soft_wrap=True).print(f"{said} in {time.monotonic() - started:.1f} s", markup=False)
    return 0


def _run(config: QuantizeConfig, told: Callable[[int, int], None]) -> str:
    assert config.model is not None
    assert config.output is not None
    jax.config.update("jax_platforms", "cpu")  # nothing is computed with JAX: no GPU's memory is taken from whoever uses it
    recipe = recipe_of(config.scheme, config.group_size)
    with open_model(model_directory(config.model)) as model:
        selection = select(model.config, model.tensors, recipe, config.keep)
        write_quantized(model, Path(config.output), recipe, selection, nearest(model, recipe), told)
    return f"{_kept(selection)}{config.output}: {len(selection.matrices)} matrices in {recipe.name}"


def _kept(selection: Selection) -> str:
    """A line for each reason why modules stay as they are."""
    lines = []
    for why, count in Counter(selection.kept.values()).items():
        modules = [module for module, reason in selection.kept.items() if reason == why]
        more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
        lines.append(f"kept, {why}: {', '.join(modules[:_SHOWN])}{more}\n")
    return "".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m jaxserve.quantize", description="Quantize a checkpoint.")
    add_flags(parser, QuantizeConfig)
    return parser


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; nothing in a log, where the last line says it all."""
    console = Console(stderr=True)
    columns = (TextColumn("quantizing"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("quantizing")
        yield lambda done, total: progress.update(task, completed=done, total=total)


if __name__ == "__main__":
    sys.exit(main())
