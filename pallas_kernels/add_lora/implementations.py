"""The implementations of add_lora, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax

from pallas_kernels import native
from pallas_kernels.add_lora import cpu_native, xla, xla_blocks
from pallas_kernels.add_lora.problem import LoraProblem
from pallas_kernels.registry import Implementation


class AddLora(Protocol):
    """The operation after its arguments were checked; see api.py."""

    def __call__(self, y: jax.Array, x: jax.Array, a: jax.Array, b: tuple[jax.Array, ...], tokens: jax.Array) -> jax.Array:
        """Add."""
        ...


IMPLEMENTATIONS: tuple[Implementation[AddLora, LoraProblem], ...] = (
    Implementation(
        "cpu_native",
        cpu_native.add_lora,
        limits=cpu_native.LIMITS,
        checked="every case, on CPUs",
        runs_on=native.runs_on,
        supports=cpu_native.supports,
    ),
    Implementation(
        "xla_blocks",
        xla_blocks.add_lora,
        limits="everything",
        checked="every case, on CPUs; not yet run on a GPU",
        suits=xla_blocks.suits,
    ),
    Implementation("xla", xla.add_lora, limits="everything", checked="every case, on CPUs; not yet run on a GPU"),
)

NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
