"""The parity gate on the device: the checks of `python -m jaxserve.verify kernels`, a process for each kernel.

A kernel that crashes takes its process's GPU with it, and that alone; and lowering, which is Python's work, does not queue.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.tasks import Figure, Task
from pallas_kernels.parity.batches import Heads
from pallas_kernels.parity.cases import AttentionCase
from pallas_kernels.parity.gate import Result
from pallas_kernels.parity.operations import OPERATIONS, Operation
from pallas_kernels.registry import Implementation, Target

TP8_ROWS = ((1, 70), (1, 16), (2, 33), (0, 0), (1, 200), (5, 21))
TP8 = tuple(
    AttentionCase(f"one KV head, pages of {size}", TP8_ROWS, heads=Heads(8, 1, 128), page_size=size, tiny=True)
    for size in (16, 64)
)
"""What a GPU of eight has of Llama-3-70B."""
THREADS = 3  # of a process: each compiles
SECONDS = 70.0  # of a process
OUTPUT = 800  # characters of a process that failed
ATTENTION = "ragged_paged_attention"
WRONG = ("FAIL", "ERROR")


def tasks(sizes: Sizes) -> Iterator[Task]:
    """A task for each operation, GPU kernel and dtype that serving rests on."""
    yield from _tasks(sizes, sizes.dtypes, lambda name: name != "xla")


def more_tasks(sizes: Sizes) -> Iterator[Task]:
    """The other dtypes."""
    yield from _tasks(sizes, sizes.more_dtypes, lambda name: name != "xla")


def xla_tasks(sizes: Sizes) -> Iterator[Task]:
    """The same of XLA, which CPUs check too."""
    yield from _tasks(sizes, sizes.dtypes + sizes.more_dtypes, lambda name: name == "xla")


def _tasks(sizes: Sizes, dtypes: Sequence[str], wanted: Callable[[str], bool]) -> Iterator[Task]:
    """In the order in which processes end. This one never starts jax: the GPU's memory is its children's."""
    pairs = [(operation, entry) for operation in OPERATIONS for entry in _entries(operation, sizes) if wanted(entry.name)]
    with ThreadPoolExecutor(len(pairs)) as pool:
        running = {pool.submit(_run, sizes, *pair, dtypes): pair for pair in pairs}
        for found in as_completed(running):
            operation, entry = running[found]
            for dtype in _known(operation, dtypes):
                labels = {"operation": operation.name, "implementation": entry.name, "dtype": dtype}
                yield Task(labels, partial(_of, found, dtype))


def _entries(operation: Operation, sizes: Sizes) -> list[Implementation[Any, Any]]:
    """Those of the platform: a GPU's kernels are known by what an H100 says of them."""
    target = Target("gpu", (9, 0)) if sizes.platform == "gpu" else Target("cpu")
    here = [entry for entry in operation.implementations if entry.runs_on(target) is None]
    return [entry for entry in here if sizes.parity_interpret or not entry.interpreted]


def _known(operation: Operation, dtypes: Sequence[str]) -> list[str]:
    return [dtype for dtype in dtypes if dtype in operation.dtypes]


def _run(
    sizes: Sizes, operation: Operation, entry: Implementation[Any, Any], dtypes: Sequence[str]
) -> tuple[dict[str, Figure], str]:
    """The figures of a process by dtype, and how it ended."""
    command = [sys.executable, "-m", "benchmarks.gpu.parity", operation.name, entry.name, "--platform", sizes.platform]
    command += ["--cases", str(sizes.parity_cases or 0), "--dtypes", *_known(operation, dtypes)]
    with tempfile.TemporaryDirectory() as scratch:
        into, errors = Path(scratch) / "figures", Path(scratch) / "stderr"
        with into.open("w") as stdout, errors.open("w") as stderr:
            # Memory taken at once would leave the other processes none.
            environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environment)
            try:
                outcome = f"its process ended with code {process.wait(timeout=SECONDS)}"
            except subprocess.TimeoutExpired:
                outcome = f"it hung, or took more than {SECONDS:.0f} s, and was ended"
            finally:
                process.kill()
                process.wait()
        events = [json.loads(line) for line in into.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        return {event["dtype"]: event["figure"] for event in events}, f"{outcome}: {errors.read_text(errors='replace')[-OUTPUT:]}"


def _of(found: Future[tuple[dict[str, Figure], str]], dtype: str) -> Figure:
    figures, outcome = found.result()
    if dtype not in figures:
        raise RuntimeError(outcome)
    return figures[dtype]


def check(operation: Operation, implementation: str, most: int | None, dtype: str, target: Target) -> Figure:
    """The worst of the cases (the first `most`), and every one that is wrong."""
    entry = next(entry for entry in operation.implementations if entry.name == implementation)
    known = (*TP8, *operation.cases) if operation.name == ATTENTION else operation.cases
    cases = [case for case in known if case.tiny or not entry.interpreted][:most]
    # Kernels are interpreted one at a time.
    with ThreadPoolExecutor(1 if entry.interpreted else min(THREADS, os.cpu_count() or 1)) as pool:
        results: list[Result] = list(pool.map(lambda case: operation.check(case, dtype, entry.name, target), cases))
    ran = [result for result in results if result.verdict in ("pass", "FAIL")]
    return {
        "cases": len(results),
        "verdicts": dict(Counter(result.verdict for result in results)),
        "max_abs": max((result.max_abs for result in ran), default=None),
        "max_rel": max((result.max_rel for result in ran), default=None),
        "cosine": min((result.cosine for result in ran), default=None),
        "wrong": [asdict(result) for result in results if result.verdict in WRONG],
        "unsupported": sorted({result.reason for result in results if result.verdict == "unsupported"}),
    }


def main() -> None:
    """Check one implementation and print a JSON object for each dtype."""
    import jax  # noqa: PLC0415 - the section itself must not start it

    from jaxserve.executor.platform import choose_platform  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("operation")
    parser.add_argument("implementation")
    parser.add_argument("--platform", choices=("cpu", "gpu"), required=True)
    parser.add_argument("--cases", type=int, required=True, help="of each, at most; 0 for all")
    parser.add_argument("--dtypes", nargs="+", required=True)
    arguments = parser.parse_args()
    if arguments.platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
    choose_platform()
    operation = next(operation for operation in OPERATIONS if operation.name == arguments.operation)
    target = Target.of(jax.devices()[0])
    for dtype in arguments.dtypes:
        figure = check(operation, arguments.implementation, arguments.cases or None, dtype, target)
        print(json.dumps({"dtype": dtype, "figure": figure}), flush=True)


if __name__ == "__main__":
    main()
