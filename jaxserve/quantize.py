"""The command `python -m jaxserve.quantize MODEL [OUTPUT] --scheme SCHEME [flags]`: a checkpoint of compressed-tensors."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from jaxserve.commands import wide_console
from jaxserve.config.check import check_types, take_several
from jaxserve.config.fields import setting
from jaxserve.config.flags import OneLineParser, add_flags
from jaxserve.engine.preparation import model_directory
from jaxserve.errors import ConfigError, JaxserveError
from jaxserve.evaluation.result import require_writable
from jaxserve.executor.platform import choose_platform
from jaxserve.jax_settings import engine_settings
from jaxserve.quantization.audit import propose
from jaxserve.quantization.checkpoint import nearest, open_model, write_quantized
from jaxserve.quantization.judged import Judged, Told
from jaxserve.quantization.plot import plot
from jaxserve.quantization.recipes import SchemeName, recipe_of
from jaxserve.quantization.report import show_proposal, show_quality
from jaxserve.quantization.selection import Selection, select
from jaxserve.simulation.plots import require_matplotlib
from jaxserve.standard_streams import after_output
from jaxserve.weights.directory import require_new

_EXIT_ERROR = 2
_EXIT_INTERRUPTED = 130
_WIDTH = 118
_BUDGET = 1.0  # percent
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

    calibration: str | None = setting(
        None, 'text file, or .jsonl with a "text" a line: half of it is fitted by, half of it says what the model loses'
    )
    audit: bool = setting(False, "choose what is kept so that perplexity rises by no more than --budget; output may be left out")
    budget: float | None = setting(None, "percent by which perplexity may rise after an audit; 1 by default")
    plot: str | None = setting(None, "also draw the audit into this PNG file")

    def __post_init__(self) -> None:
        take_several(self, "keep")
        check_types(self)
        if self.model is None:
            raise ConfigError("model: name what to quantize", param="model")
        if self.output is None and not self.audit:
            raise ConfigError("output: name the directory to write", param="output")
        if self.audit and self.calibration is None:
            raise ConfigError("calibration: an audit needs a text", param="calibration")
        for name in ("budget", "plot"):
            if getattr(self, name) is not None and not self.audit:
                raise ConfigError(f"{name} is of an audit", param=name)
        if self.budget is not None and not 0.0 < self.budget < math.inf:
            raise ConfigError(f"budget must be above 0 and finite, got {self.budget}", param="budget")
        if self.plot is not None:
            require_writable(Path(self.plot), "plot")  # before the work, not after it
            require_matplotlib()


def main(argv: Sequence[str] | None = None) -> int:
    started = time.monotonic()
    console = wide_console(_WIDTH)
    try:
        config = QuantizeConfig(**vars(_parser().parse_args(argv)))
        _run(config, console)
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    console.print(f"{time.monotonic() - started:.1f} s", markup=False)
    return 0


@engine_settings()
def _run(config: QuantizeConfig, console: Console) -> None:
    assert config.model is not None
    recipe = recipe_of(config.scheme, config.group_size)
    if config.calibration is None:
        jax.config.update("jax_platforms", "cpu")  # nothing is computed with JAX: no GPU's memory is taken from whoever uses it
    else:
        choose_platform()
    if config.output is not None:
        require_new(Path(config.output))
    with open_model(model_directory(config.model)) as model, _progress() as told:
        selection = select(model.config, model.tensors, recipe, config.keep)
        judged = None if config.calibration is None else Judged.of(model, recipe, selection, Path(config.calibration), told)
        if config.audit:
            assert judged is not None
            budget = _BUDGET if config.budget is None else config.budget
            proposal = propose(model, judged.measure, recipe, selection, judged.calibration.fitting, budget)
            selection = proposal.selection
            show_proposal(proposal, recipe, budget, console)
            if config.plot is not None:
                plot(proposal, recipe, Path(config.plot))
        _tell_kept(selection, console)
        if config.output is not None:
            rounding = nearest(model, recipe) if judged is None else judged.round(model, selection)
            judge = None if judged is None else partial(judged.judge, selection)
            rounded = partial(told, "rounding")
            manifest = write_quantized(model, Path(config.output), recipe, selection, rounding, rounded, judge=judge)
            show_quality(manifest.quality, console)
            console.print(f"{config.output}: {len(selection.matrices)} matrices in {recipe.name}", markup=False, soft_wrap=True)


def _tell_kept(selection: Selection, console: Console) -> None:
    """A line for each reason why modules stay as they are."""
    for why, count in Counter(selection.kept.values()).items():
        modules = [module for module, reason in selection.kept.items() if reason == why]
        more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
        console.print(f"kept, {why}: {', '.join(modules[:_SHOWN])}{more}", markup=False, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m jaxserve.quantize", description="Quantize a checkpoint, and measure what it loses.")
    add_flags(parser, QuantizeConfig)
    return parser


@contextmanager
def _progress() -> Iterator[Told]:
    """A bar on a terminal; nothing in a log, where what is printed says it all."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading")
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)


if __name__ == "__main__":
    sys.exit(after_output(main()))
