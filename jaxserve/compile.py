"""The command `python -m jaxserve.compile MODEL --target h100:8 --tp 8 [flags]`: compiles for GPUs that are not here, or CPUs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jax

from jaxserve.aot.build import CompiledStep, compile_for
from jaxserve.aot.report import show
from jaxserve.aot.settings import TargetConfig
from jaxserve.commands import wide_console, write_json
from jaxserve.config.fields import setting
from jaxserve.config.flags import OneLineParser, add_flags
from jaxserve.config.home import expand_home
from jaxserve.errors import JaxserveError
from jaxserve.executor.compile_cache import NO_CACHE, keep_compiled_programs
from jaxserve.standard_streams import after_output

_EXIT_ERROR = 2
_WIDTH = 150  # of the widest table: cut-off numbers are worse than wrapped lines, and a pipe has no width of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """What to write."""

    json: str | None = setting(None, "also write everything to this file, as JSON")
    output: str | None = setting(None, "save the programs in this directory, for jaxserve.serve --programs")


def main(argv: Sequence[str] | None = None) -> int:
    try:
        settings = vars(_parser().parse_args(argv))
        output = OutputConfig(json=settings.pop("json"), output=settings.pop("output"))
        config = TargetConfig(**settings)
        jax.config.update("jax_platforms", "cpu")  # a GPU that is here has no part in it
        keep_compiled_programs(NO_CACHE)  # what comes from a cache tells nothing of how it was compiled
        result = compile_for(config, _say_done, None if output.output is None else expand_home(output.output, "output"))
        if output.json is not None:
            write_json(Path(output.json), asdict(result))
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    console = wide_console(_WIDTH)
    show(result, console)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m jaxserve.compile", description="Compile the engine's step ahead of time.")
    add_flags(parser, TargetConfig, OutputConfig)
    return parser


def _say_done(step: CompiledStep) -> None:
    sys.stderr.write(f"compiled {step.tokens} x {step.rows} (tokens x rows) in {step.seconds:.0f} s\n")


if __name__ == "__main__":
    sys.exit(after_output(main()))
