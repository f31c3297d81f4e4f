"""The parity gate on the device: the checks of `python -m jaxserve.verify kernels`, several at a time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import jax

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
MOST_THREADS = 8  # each compiles; kernels are interpreted one at a time
ATTENTION = "ragged_paged_attention"
WRONG = ("FAIL", "ERROR")


def tasks(sizes: Sizes) -> Iterator[Task]:
    """A task for each operation, GPU kernel and dtype that serving rests on."""
    yield from _tasks(sizes, sizes.dtypes, lambda name: name != "xla")


def more_tasks(sizes: Sizes) -> Iterator[Task]:
    """The other dtypes."""
    yield from _tasks(sizes, sizes.more_dtypes, lambda name: name != "xla")


def xla_tasks(sizes: Sizes) -> Iterator[Task]:
    """The same of XLA, which CPUs check too: apart, since a kernel that crashes takes its process's GPU with it."""
    yield from _tasks(sizes, sizes.dtypes + sizes.more_dtypes, lambda name: name == "xla")


def _tasks(sizes: Sizes, dtypes: Sequence[str], wanted: Callable[[str], bool]) -> Iterator[Task]:
    """Attention first."""
    target = Target.of(jax.devices()[0])
    pairs = [(operation, entry) for operation in OPERATIONS for entry in _entries(operation, target, sizes)]
    chosen = sorted((pair for pair in pairs if wanted(pair[1].name)), key=lambda pair: pair[0].name == "kv_write")
    for dtype in dtypes:
        for operation, entry in (pair for pair in chosen if dtype in pair[0].dtypes):
            labels = {"operation": operation.name, "implementation": entry.name, "dtype": dtype}
            known = (*TP8, *operation.cases) if operation.name == ATTENTION else operation.cases
            cases = [case for case in known if case.tiny or not entry.interpreted][: sizes.parity_cases]
            yield Task(labels, partial(_check, operation.check, cases, dtype, entry, target))


def _entries(operation: Operation, target: Target, sizes: Sizes) -> list[Implementation[Any, Any]]:
    here = [entry for entry in operation.implementations if entry.runs_on(target) is None]
    return [entry for entry in here if sizes.parity_interpret or not entry.interpreted]


def _check(
    check: Callable[..., Result], cases: Sequence[Any], dtype: str, entry: Implementation[Any, Any], target: Target
) -> Figure:
    """The worst of the cases, and every one that is wrong."""
    threads = 1 if entry.interpreted else min(MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(lambda case: check(case, dtype, entry.name, target), cases))
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
