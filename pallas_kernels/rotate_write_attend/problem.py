"""What implementations of rotate_write_attend are chosen by: everything that tracing knows of a call."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.ragged_paged_attention.problem import AttentionProblem
from pallas_kernels.rotate_and_write.problem import RotateProblem


@dataclass(frozen=True, slots=True)
class RotateAttendProblem:
    """What is asked of either of its halves."""

    rotate: RotateProblem
    attend: AttentionProblem
