"""The implementations of matmul, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax

from pallas_kernels import native
from pallas_kernels.matmul import cpu_native, xla
from pallas_kernels.matmul.matrix import Matrix
from pallas_kernels.matmul.problem import MatmulProblem
from pallas_kernels.registry import Implementation


class Matmul(Protocol):
    """The operation after its arguments were checked; see api.py."""

    def __call__(self, x: jax.Array, matrix: Matrix) -> jax.Array:
        """Multiply x[T, I]."""
        ...


IMPLEMENTATIONS: tuple[Implementation[Matmul, MatmulProblem], ...] = (
    Implementation(
        "cpu_native",
        cpu_native.matmul,
        limits=cpu_native.LIMITS,
        checked="every case, on CPUs",
        runs_on=native.runs_on,
        supports=cpu_native.supports,
    ),
    Implementation("xla", xla.matmul, limits="everything", checked="every case, on CPUs; not yet run on a GPU"),
)

NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
