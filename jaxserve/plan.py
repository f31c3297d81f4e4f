"""The door `python -m jaxserve.plan MODEL [flags]`: what fits on a machine, how fast, at what price."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from jaxserve.config.fields import setting
from jaxserve.config.flags import add_flags
from jaxserve.errors import ConfigError, JaxserveError
from jaxserve.planner.report import show
from jaxserve.planner.study import PlanConfig, Study, study

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
            _write(Path(output.json), result)
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    console = Console(highlight=False)
    console.width = max(console.width, _WIDTH) if console.is_terminal else _WIDTH
    show(result, console, with_formulas=output.formulas)
    return 0


class _Parser(argparse.ArgumentParser):
    """Complains in one line, as every other mistake is."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m jaxserve.plan", description="Say what fits on a machine, how fast, at what price.")
    add_flags(parser, PlanConfig, OutputConfig)
    return parser


def _write(path: Path, result: Study) -> None:
    try:
        path.write_text(json.dumps(asdict(result), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", param="json") from error


if __name__ == "__main__":
    sys.exit(main())
