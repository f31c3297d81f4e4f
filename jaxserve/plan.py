"""The command `python -m jaxserve.plan MODEL [flags]`: what fits on a machine, how fast, at what price."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxserve.commands import wide_console, write_json
from jaxserve.config.fields import setting
from jaxserve.config.flags import OneLineParser, add_flags
from jaxserve.errors import JaxserveError
from jaxserve.planner.report import show
from jaxserve.planner.study import PlanConfig, study
from jaxserve.standard_streams import after_output

_EXIT_ERROR = 2
_WIDTH = 118  # of the widest table: cut-off numbers are worse than wrapped lines, and a pipe has no width of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """What to print."""

    formulas: bool = setting(False, "show how each number came about")
    json: str | None = setting(None, "also write every figure to this file, as JSON")


def main(argv: Sequence[str] | None = None) -> int:
    """Plan and print. Returns the exit code; whatever is wrong with the question is one line on stderr."""
    try:
        settings = vars(_parser().parse_args(argv))
        output = OutputConfig(formulas=settings.pop("formulas"), json=settings.pop("json"))
        result = study(PlanConfig(**settings))
        if output.json is not None:
            write_json(Path(output.json), asdict(result))
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    console = wide_console(_WIDTH)
    show(result, console, with_formulas=output.formulas)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m jaxserve.plan", description="Say what fits on a machine, how fast, at what price.")
    add_flags(parser, PlanConfig, OutputConfig)
    return parser


if __name__ == "__main__":
    sys.exit(after_output(main()))
