"""The command `python -m jaxserve.simulate MODEL [flags]`: what a workload would see of the real scheduler on given hardware."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxserve.commands import wide_console, write_json
from jaxserve.config.fields import SchedulerConfig, setting
from jaxserve.config.flags import OneLineParser, add_flags, from_flags
from jaxserve.errors import ConfigError, JaxserveError
from jaxserve.simulation.fleet import Fleet
from jaxserve.simulation.plots import plot, require_matplotlib
from jaxserve.simulation.replay import ReplayConfig, run_replay
from jaxserve.simulation.replay_table import show_replay
from jaxserve.simulation.report import Report, report
from jaxserve.simulation.scenario import Scenario, simulate
from jaxserve.simulation.settings import ReplicaConfig
from jaxserve.simulation.table import show
from jaxserve.standard_streams import after_output
from jaxserve.workload.settings import SloConfig, WorkloadConfig

_EXIT_DIFFERENT = 1
_EXIT_ERROR = 2
_WIDTH = 118  # of the widest table: cut-off numbers are worse than wrapped lines, and a pipe has no width of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """What to write besides the table."""

    json: str | None = setting(None, "also write every figure and series to this file, as JSON")
    plot: str | None = setting(None, "also draw the run into this PNG file (needs the extra 'plots')")


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, or replay, and print.

    Returns the exit code: 1 if a replay gave other tokens, or raised; 2 if something is wrong with the question, which is one
    line on stderr.
    """
    console = wide_console(_WIDTH)
    try:
        settings = vars(_parser().parse_args(argv))
        output = from_flags(OutputConfig, settings)
        replay_config = from_flags(ReplayConfig, settings)
        scenario = Scenario(
            replica=from_flags(ReplicaConfig, settings),
            scheduler=from_flags(SchedulerConfig, settings),
            workload=from_flags(WorkloadConfig, settings),
            slo=from_flags(SloConfig, settings),
        )
        if replay_config.replay is not None:
            others = (scenario.scheduler, scenario.workload, scenario.slo, output)
            replay = run_replay(replay_config, scenario.replica, others)
            show_replay(replay, console)
            return 0 if replay.equal else _EXIT_DIFFERENT
        if output.plot is not None:
            require_matplotlib()  # before the work, not after it
        result = report(scenario, _simulated(scenario))
        _write(output, result)
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    show(result, console)
    return 0


def _simulated(scenario: Scenario) -> Fleet:
    """Run it without the garbage collector: requests make no cycles, and looking for some takes a quarter of a long run."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return simulate(scenario)
    finally:
        if collects:
            gc.enable()


def _parser() -> argparse.ArgumentParser:
    text = "Run the real scheduler on a virtual clock and say what a workload would see of it."
    parser = OneLineParser(prog="python -m jaxserve.simulate", description=text)
    add_flags(parser, ReplicaConfig, SchedulerConfig, WorkloadConfig, SloConfig, OutputConfig, ReplayConfig)
    return parser


def _write(output: OutputConfig, result: Report) -> None:
    if output.json is not None:
        write_json(Path(output.json), result.as_json())
    if output.plot is not None:
        try:
            plot(result, Path(output.plot))
        except OSError as error:
            raise ConfigError(f"cannot write {output.plot}: {error.strerror}", param="plot") from error


if __name__ == "__main__":
    sys.exit(after_output(main()))
