"""The operations with their implementations and cases, and a run over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_kernels.causal_conv1d import implementations as conv
from pallas_kernels.gated_linear_attention import implementations as linear
from pallas_kernels.grouped_matmul import implementations as grouped
from pallas_kernels.kv_write import implementations as write
from pallas_kernels.matmul import implementations as matmul
from pallas_kernels.parity.cases import (
    ATTENTION_CASES,
    DTYPES,
    GROUPED_CASES,
    MATMUL_CASES,
    MATMUL_DTYPES,
    ROTATE_ATTEND_CASES,
    ROTATE_CASES,
    WRITE_CASES,
)
from pallas_kernels.parity.gate import (
    Result,
    check_attention,
    check_grouped,
    check_matmul,
    check_rotate,
    check_rotate_attend,
    check_write,
)
from pallas_kernels.parity.recurrence import CONV_CASES, LINEAR_CASES, check_conv, check_linear
from pallas_kernels.parity.rounding import ROUND_CASES, check_round
from pallas_kernels.ragged_paged_attention import implementations as attention
from pallas_kernels.registry import Implementation, Target
from pallas_kernels.rotate_and_write import implementations as rotate
from pallas_kernels.rotate_write_attend import implementations as rotate_attend
from pallas_kernels.round_rows import implementations as rounding


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation; `check(case, dtype, implementation's name, target)` runs one of its cases in one of its dtypes."""

    name: str
    implementations: Sequence[Implementation[Any, Any]]
    cases: Sequence[Any]
    check: Callable[[Any, str, str, Target], Result]
    dtypes: Sequence[str] = DTYPES


OPERATIONS = (
    Operation("causal_conv1d", conv.IMPLEMENTATIONS, CONV_CASES, check_conv, MATMUL_DTYPES),
    Operation("gated_linear_attention", linear.IMPLEMENTATIONS, LINEAR_CASES, check_linear, MATMUL_DTYPES),
    Operation("grouped_matmul", grouped.IMPLEMENTATIONS, GROUPED_CASES, check_grouped, MATMUL_DTYPES),
    Operation("kv_write", write.IMPLEMENTATIONS, WRITE_CASES, check_write),
    Operation("matmul", matmul.IMPLEMENTATIONS, MATMUL_CASES, check_matmul, MATMUL_DTYPES),
    Operation("ragged_paged_attention", attention.IMPLEMENTATIONS, ATTENTION_CASES, check_attention),
    Operation("rotate_and_write", rotate.IMPLEMENTATIONS, ROTATE_CASES, check_rotate, MATMUL_DTYPES),
    Operation("rotate_write_attend", rotate_attend.IMPLEMENTATIONS, ROTATE_ATTEND_CASES, check_rotate_attend, MATMUL_DTYPES),
    Operation("round_rows", rounding.ROWS, ROUND_CASES, check_round, MATMUL_DTYPES),
)


def check_all(operations: Sequence[Operation], dtypes: Sequence[str], target: Target, *, interpret: bool) -> Iterator[Result]:
    """Run every case of every implementation that runs on the target, on jax's default device.

    Each runs in those of the dtypes that are its operation's.
    Interpreted implementations are left out unless `interpret`; they run the tiny cases.
    """
    for operation in operations:
        for entry in operation.implementations:
            if entry.runs_on(target) is not None or (entry.interpreted and not interpret):
                continue
            for case in operation.cases:
                if case.tiny or not entry.interpreted:
                    for dtype in (dtype for dtype in dtypes if dtype in operation.dtypes):
                        yield operation.check(case, dtype, entry.name, target)
