"""The command `python -m jaxserve.bench serving [flags]`: loads a running server and says what its clients saw."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jaxserve.commands import wide_console, write_json
from jaxserve.config.fields import setting
from jaxserve.config.flags import OneLineParser, add_flags, from_flags
from jaxserve.errors import ConfigError, JaxserveError
from jaxserve.load.agreement import agreement
from jaxserve.load.outcome import RequestOutcome
from jaxserve.load.plots import plot
from jaxserve.load.report import LoadReport, report
from jaxserve.load.run import Run
from jaxserve.load.settings import LoadConfig
from jaxserve.load.table import show
from jaxserve.load.target import Served, Target
from jaxserve.simulation.plots import require_matplotlib
from jaxserve.standard_streams import after_output
from jaxserve.types import ServiceClass
from jaxserve.workload.generate import generate
from jaxserve.workload.lengths import CUT, LENGTHS, cut_to_context, workload_without
from jaxserve.workload.requests import WorkloadRequest
from jaxserve.workload.settings import SloConfig, WorkloadConfig
from jaxserve.workload.trace import read_trace

_EXIT_FAILURES = 1
_EXIT_ERROR = 2
_WIDTH = 100
_CLASS = ServiceClass.INTERACTIVE_PAID  # of requests whose workload names none, as the server's own default


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """What to write besides the tables."""

    json: str | None = setting(None, "also write every figure to this file, as JSON")
    plot: str | None = setting(None, "also draw the run into this PNG file (needs the extra 'plots')")


def main(argv: Sequence[str] | None = None) -> int:
    """Load the server and print.

    Returns the exit code: 1 if a request failed, 2 if the question makes no sense or the server cannot be asked, which is one
    line on stderr.
    """
    try:
        settings = vars(_parser().parse_args(argv))
        free = [name for name in LENGTHS if settings[name] is None]
        load, workload = from_flags(LoadConfig, settings), workload_without(free, settings)
        slo, output = from_flags(SloConfig, settings), from_flags(OutputConfig, settings)
        if output.plot is not None:
            require_matplotlib()  # before the work, not after it
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result, outcomes = runner.run(_measure(load, workload, free, slo))
        _write(output, result, outcomes)
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    except KeyboardInterrupt:
        return 130
    show(result, wide_console(_WIDTH))
    return _EXIT_FAILURES if result.errors else 0


async def _measure(
    load: LoadConfig, workload: WorkloadConfig, free: Collection[str], slo: SloConfig
) -> tuple[LoadReport, list[RequestOutcome]]:
    target = Target(load)
    try:
        served = await target.look()
        workload = cut_to_context(workload, free, served.max_model_len)
        requests = list(_requests(workload, served))  # what is wrong with them is told before anything is sent
        with _bar() as bar:
            task = bar.add_task("requests", total=len(requests))
            run = Run(target, served, load, workload, lambda _: bar.advance(task))
            await run.warm(requests[0])
            before = await target.metrics()
            if load.concurrency is None:
                outcomes = await run.open_loop(iter(requests))
            else:
                outcomes = await run.closed_loop(iter(requests), load.concurrency)
            after = await target.metrics()
        compared = agreement(before, after, outcomes) if before is not None and after is not None else []
        return report(served.model, outcomes, slo, compared), outcomes
    finally:
        target.close()


def _requests(workload: WorkloadConfig, served: Served) -> Iterator[WorkloadRequest]:
    if workload.trace is not None:
        return read_trace(Path(workload.trace), served.max_model_len, _CLASS)
    return generate(workload, served.max_model_len, _CLASS)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = wide_console(_WIDTH)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _write(output: OutputConfig, result: LoadReport, outcomes: Sequence[RequestOutcome]) -> None:
    if output.json is not None:
        write_json(Path(output.json), result.as_dict())
    if output.plot is not None:
        try:
            plot(result, outcomes, Path(output.plot))
        except OSError as error:
            raise ConfigError(f"cannot write {output.plot}: {error.strerror}", param="plot") from error


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m jaxserve.bench", description="Measure a running server.")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="{serving}", parser_class=OneLineParser)
    serving = kinds.add_parser("serving", help="load a server that speaks OpenAI's completions", description=__doc__)
    add_flags(serving, LoadConfig, WorkloadConfig, SloConfig, OutputConfig, chosen=LENGTHS, chosen_how=CUT)
    return parser


if __name__ == "__main__":
    sys.exit(after_output(main()))
