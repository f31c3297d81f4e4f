"""The command `python -m jaxserve.eval [MODEL] [flags]`: scores a model with the lm-eval harness, in this process and offline.

`--compare A B ...` compares checkpoints, and results that were written with --output, with the first of them.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from jaxserve.answering import CHOSEN, throughput_config
from jaxserve.commands import wide_console
from jaxserve.config.fields import EngineConfig, ModelConfig, setting
from jaxserve.config.flags import OneLineParser, add_flags, flag_names, from_flags
from jaxserve.config.harness import prepare_harness
from jaxserve.errors import ConfigError, JaxserveError
from jaxserve.evaluation.differences import differences
from jaxserve.evaluation.listing import show_tasks
from jaxserve.evaluation.plot import plot
from jaxserve.evaluation.report import show, show_comparison
from jaxserve.evaluation.result import CHECKPOINTS, Result, read_results, require_writable, write_atomically
from jaxserve.evaluation.settings import EvalConfig
from jaxserve.simulation.plots import require_matplotlib
from jaxserve.standard_streams import after_output
from jaxserve.types import ServiceClass

if TYPE_CHECKING:
    from jaxserve.evaluation.harness import Tasks

_EXIT_ERROR = 2
_EXIT_INTERRUPTED = 130
_WIDTH = 118
_BUNDLED = ModelConfig().model
_LIST = "list"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """What to write besides the table."""

    output: str | None = setting(None, "also write every figure to this file, as JSON")
    plot: str | None = setting(None, "also draw the figures into this PNG file")

    def __post_init__(self) -> None:
        for name in ("output", "plot"):
            path = getattr(self, name)
            if path is not None:
                require_writable(Path(path), name)  # before the work, not after it
        if self.plot is not None:
            require_matplotlib()


def main(argv: Sequence[str] | None = None) -> int:
    console = wide_console(_WIDTH)
    try:
        settings = vars(_parser().parse_args(argv))
        config, output = from_flags(EvalConfig, settings), from_flags(OutputConfig, settings)
        with tempfile.TemporaryDirectory(prefix="jaxserve-eval-") as scratch:
            prepare_harness(Path(scratch))
            if config.names == (_LIST,):
                _list(config, console)
            elif settings["compare"] is not None:
                _compare(config, output, settings, console)
            else:
                _score(config, output, settings, console)
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    return 0


def _list(config: EvalConfig, console: Console) -> None:
    _require_harness()
    from jaxserve.evaluation.harness import count_others, list_own, quiet  # noqa: PLC0415 - optional

    quiet()
    show_tasks(list_own(config.include_path), count_others(), console)


def _score(config: EvalConfig, output: OutputConfig, settings: dict[str, Any], console: Console) -> None:
    tasks = _load(config)
    result = _run(tasks, config, _engine_settings(settings, settings["model"]))
    if output.output is not None:
        write_atomically(Path(output.output), result.as_dict())
    if output.plot is not None:
        plot([result], Path(output.plot))
    show(result, console)


def _compare(config: EvalConfig, output: OutputConfig, settings: dict[str, Any], console: Console) -> None:
    if settings["model"] != _BUNDLED:
        raise ConfigError("--compare names every model: give none before it", param="compare")
    sources = [Path(name) for name in settings["compare"]]
    read = {path: read_results(path) for path in sources if path.is_file()}
    missing = [str(path) for path in sources if path not in read and str(path) != _BUNDLED and not path.is_dir()]
    if missing:
        raise ConfigError(f"neither a checkpoint nor a result: {', '.join(missing)}", param="compare")
    if len(sources) < 2 and sum(map(len, read.values())) < 2:
        raise ConfigError("--compare wants at least two checkpoints or results", param="compare")
    results: list[Result] = []
    for path in sources:
        if path in read:
            results += read[path]
            continue
        tasks = _load(config)
        results.append(_run(tasks, config, _engine_settings(settings, str(path))))
        gc.collect()  # the engine has cycles, and the next one wants its memory
        if output.output is not None:
            write_atomically(Path(output.output), _comparison(results))
    if output.output is not None:
        write_atomically(Path(output.output), _comparison(results))
    if output.plot is not None:
        plot(results, Path(output.plot))
    show_comparison(results, console)


def _comparison(results: Sequence[Result]) -> dict[str, Any]:
    return {
        CHECKPOINTS: [result.as_dict() for result in results],
        "differences": [[entry.as_dict() for entry in differences(results[0], result)] for result in results[1:]],
    }


def _load(config: EvalConfig) -> Tasks:
    _require_harness()
    from jaxserve.evaluation.harness import load_tasks, quiet  # noqa: PLC0415 - optional

    quiet()
    return load_tasks(config.names, config.include_path)


def _run(tasks: Tasks, config: EvalConfig, settings: dict[str, Any]) -> Result:
    from jaxserve.evaluation.run import run  # noqa: PLC0415 - optional

    with _bar() as progress:
        return run(tasks, config, settings, progress.told)


def _require_harness() -> None:
    try:
        import lm_eval  # noqa: F401, PLC0415 - optional
    except ImportError as error:
        raise ConfigError("evaluation needs the lm-eval harness: pip install 'jaxserve[eval]'") from error


def _engine_settings(settings: dict[str, Any], model: str) -> dict[str, Any]:
    """What differs from an engine's own defaults: what was asked for, and what a batch of work wants."""
    names = [name for part in get_type_hints(EngineConfig).values() for name in flag_names(part)]
    config = throughput_config({name: settings[name] for name in names} | {"model": model})
    wanted, usual = _flat(config), _flat(EngineConfig())
    return {name: value for name, value in wanted.items() if value != usual[name] or name == "model"}


def _flat(config: EngineConfig) -> dict[str, Any]:
    return {name: value for part in fields(config) for name, value in asdict(getattr(config, part.name)).items()}


class _Bar:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._what = ""

    def told(self, what: str, done: int, total: int) -> None:
        if self._task is None or what != self._what:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task, self._what = self._progress.add_task(what, total=total), what
        self._progress.update(self._task, completed=done, total=total)


@contextmanager
def _bar() -> Iterator[_Bar]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield _Bar(progress)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m jaxserve.eval", description=__doc__)
    parser.add_argument(
        "--compare", nargs="+", metavar="CHECKPOINT|RESULT", help="checkpoints, and files that --output wrote, in their order"
    )
    add_flags(parser, EvalConfig, OutputConfig, *get_type_hints(EngineConfig).values(), chosen=CHOSEN)
    parser.set_defaults(default_class=ServiceClass.BATCH.value)  # nobody waits for a first token
    return parser


if __name__ == "__main__":
    sys.exit(after_output(main()))
