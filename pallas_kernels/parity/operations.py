"""The operations with their implementations and cases, and a run over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_kernels.kv_write import implementations as write
from pallas_kernels.parity.cases import ATTENTION_CASES, WRITE_CASES
from pallas_kernels.parity.gate import Result, check_attention, check_write
from pallas_kernels.ragged_paged_attention import implementations as attention
from pallas_kernels.registry import Implementation, Target


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation; `check(case, dtype, implementation's name, target)` runs one of its cases."""

    name: str
    implementations: Sequence[Implementation[Any, Any]]
    cases: Sequence[Any]
    check: Callable[[Any, str, str, Target], Result]


OPERATIONS = (
    Operation("kv_write", write.IMPLEMENTATIONS, WRITE_CASES, check_write),
    Operation("ragged_paged_attention", attention.IMPLEMENTATIONS, ATTENTION_CASES, check_attention),
)


def check_all(operations: Sequence[Operation], dtypes: Sequence[str], target: Target, *, interpret: bool) -> Iterator[Result]:
    """Run every case in every dtype of every implementation that runs on the target, on jax's default device.

    Interpreted implementations are left out unless `interpret`; they run the tiny cases.
    """
    for operation in operations:
        for entry in operation.implementations:
            if entry.runs_on(target) is not None or (entry.interpreted and not interpret):
                continue
            for case in operation.cases:
                if case.tiny or not entry.interpreted:
                    for dtype in dtypes:
                        yield operation.check(case, dtype, entry.name, target)
