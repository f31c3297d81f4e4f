"""Runs one section and appends what it finds to a file, a JSON object a line, so that nothing is lost when it dies.

python -m benchmarks.gpu.child --section decode --sizes full --into FILE --seconds 90
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from benchmarks.gpu.sections import SECTIONS
from benchmarks.gpu.sizes import SIZES
from benchmarks.gpu.tasks import Figure, Section
from jaxserve.executor.compile_cache import NO_CACHE, keep_compiled_programs
from jaxserve.executor.platform import choose_platform

MEMORY_FRACTION = 0.9  # of a GPU, taken at once as the engine takes it
TRACEBACK = 1500  # characters of its end


def run_section(section: Section, sizes: Any, seconds: float, tell: Callable[[Figure], None]) -> None:
    """Run the tasks until `seconds` are over; `tell` gets {"figure": ...} for each, {"stopped": ...} or {"error": ...}."""
    deadline = time.monotonic() + seconds
    try:
        for task in section(sizes):
            if time.monotonic() > deadline:
                tell({"stopped": f"its {seconds:.0f} s were over before {task.labels}"})
                return
            try:
                tell({"figure": task.labels | task.measure()})
            except Exception as error:
                tell({"figure": task.labels | {"error": describe_error(error)}})
    except Exception as error:
        tell({"error": describe_error(error)})


def describe_error(error: Exception) -> Figure:
    """Type, message and the end of the traceback."""
    lines = "".join(traceback.format_exception(error))
    return {"type": type(error).__name__, "message": str(error)[:TRACEBACK], "traceback": lines[-TRACEBACK:]}


def main() -> None:
    """Read the flags and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", required=True, choices=SECTIONS)
    parser.add_argument("--sizes", required=True, choices=SIZES)
    parser.add_argument("--into", required=True, type=Path)
    parser.add_argument("--seconds", required=True, type=float)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--attention-kernel", default="auto")
    parser.add_argument("--only-xla", action="store_true")
    arguments = parser.parse_args()
    sizes = SIZES[arguments.sizes]
    kernel = "xla" if arguments.only_xla else arguments.attention_kernel
    engines = {name: replace(getattr(sizes, name), kernel=kernel) for name in ("engine", "more_engine")}
    sizes = replace(sizes, scratch=arguments.scratch, **engines)
    if arguments.only_xla:
        sizes = replace(sizes, kernels=("xla",), more_kernels=("xla",))
    if sizes.platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
        if SECTIONS[arguments.section].several:
            jax.config.update("jax_num_cpu_devices", 2)
    choose_platform(MEMORY_FRACTION)
    # Compile times are figures, but those of a rehearsal mean nothing.
    cached = sizes.platform == "cpu" and arguments.scratch is not None
    keep_compiled_programs(str(arguments.scratch / "cache") if cached else NO_CACHE)
    with arguments.into.open("a", encoding="utf-8") as file:

        def tell(event: Figure) -> None:
            file.write(json.dumps(event) + "\n")
            file.flush()

        run_section(SECTIONS[arguments.section].load(), sizes, arguments.seconds, tell)


if __name__ == "__main__":
    main()
