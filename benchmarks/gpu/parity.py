"""The parity gate on the device: the checks of `python -m jaxserve.verify kernels`, in processes of a few cases each.

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
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.children import environment, read_objects
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
CASES = 12  # of a process
SECONDS = 150.0  # of a process
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
    """Attention first. This process never starts jax: the GPU's memory is its children's."""
    pairs = [(operation, entry) for operation in OPERATIONS for entry in _entries(operation, sizes) if wanted(entry.name)]
    groups = [_Group(*pair, dtype) for pair in pairs for dtype in dtypes if dtype in pair[0].dtypes]
    groups.sort(key=lambda group: group.operation.name != ATTENTION)  # those that take longest first
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        shares = {group: [pool.submit(_run, group, names, sizes.platform) for names in group.shares(sizes)] for group in groups}
        for group, found in shares.items():
            yield Task(group.labels, partial(_summary, found, sum(map(len, group.shares(sizes)))))


def _entries(operation: Operation, sizes: Sizes) -> list[Implementation[Any, Any]]:
    """Those of the platform: a GPU's kernels are known by what an H100 says of them."""
    target = Target("gpu", (9, 0)) if sizes.platform == "gpu" else Target("cpu")
    here = [entry for entry in operation.implementations if entry.runs_on(target) is None]
    return [entry for entry in here if sizes.parity_interpret or not entry.interpreted]


@dataclass(frozen=True, eq=False)
class _Group:
    """What a figure is of."""

    operation: Operation
    entry: Implementation[Any, Any]
    dtype: str

    @property
    def labels(self) -> Figure:
        return {"operation": self.operation.name, "implementation": self.entry.name, "dtype": self.dtype}

    def shares(self, sizes: Sizes) -> list[list[str]]:
        """The names of its cases, a process each."""
        names = [case.name for case in cases_of(self.operation) if case.tiny or not self.entry.interpreted]
        names = names[: sizes.parity_cases]
        return [names[start : start + CASES] for start in range(0, len(names), CASES)]


def cases_of(operation: Operation) -> Sequence[Any]:
    """Those of the gate, and what a GPU of eight has."""
    return (*TP8, *operation.cases) if operation.name == ATTENTION else operation.cases


def _run(group: _Group, names: Sequence[str], platform: str) -> list[Result]:
    """The results of a process. What one dies of, or hangs in, is the first case that it has no result of: an ERROR."""
    command = [sys.executable, "-m", "benchmarks.gpu.parity", *group.labels.values(), "--platform", platform, "--cases", *names]
    with tempfile.TemporaryDirectory() as scratch:
        into, errors = Path(scratch) / "results", Path(scratch) / "stderr"
        with into.open("w") as stdout, errors.open("w") as stderr:
            process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environment())
            try:
                outcome = f"its process ended with code {process.wait(timeout=SECONDS)}"
            except subprocess.TimeoutExpired:
                outcome = f"it hung, or took more than {SECONDS:.0f} s, and was ended"
            finally:
                process.kill()
                process.wait()
        results = [Result(**found) for found in read_objects(into.read_text())]
        if len(results) < len(names):
            reason = f"{outcome}: {errors.read_text(errors='replace')[-OUTPUT:]}"
            case = names[len(results)]
            results.append(Result(group.operation.name, group.entry.name, case, group.dtype, "ERROR", reason=reason))
        return results


def _summary(shares: Sequence[Future[list[Result]]], count: int) -> Figure:
    """The worst of `count` cases, every one that is wrong, and how many came behind one that ended its process."""
    results = [result for share in shares for result in share.result()]
    ran = [result for result in results if result.verdict in ("pass", "FAIL")]
    return {
        "cases": count,
        "missed": count - len(results),
        "verdicts": dict(Counter(result.verdict for result in results)),
        "max_abs": max((result.max_abs for result in ran), default=None),
        "max_rel": max((result.max_rel for result in ran), default=None),
        "cosine": min((result.cosine for result in ran), default=None),
        "wrong": [asdict(result) for result in results if result.verdict in WRONG],
        "unsupported": sorted({result.reason for result in results if result.verdict == "unsupported"}),
    }


def main() -> None:
    """Check cases of one implementation and print the result of each."""
    import jax  # noqa: PLC0415 - the section itself must not start it

    from jaxserve.executor.platform import choose_platform  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("operation")
    parser.add_argument("implementation")
    parser.add_argument("dtype")
    parser.add_argument("--platform", choices=("cpu", "gpu"), required=True)
    parser.add_argument("--cases", nargs="+", required=True)
    arguments = parser.parse_args()
    if arguments.platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
    choose_platform()
    operation = next(operation for operation in OPERATIONS if operation.name == arguments.operation)
    target = Target.of(jax.devices()[0])
    for case in (case for case in cases_of(operation) if case.name in arguments.cases):
        print(json.dumps(asdict(operation.check(case, arguments.dtype, arguments.implementation, target))), flush=True)


if __name__ == "__main__":
    main()
