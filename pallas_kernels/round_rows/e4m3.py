"""E4M3 (Micikevicius et al. 2022), and what a row's step is: its largest magnitude over the largest number."""

from __future__ import annotations

import jax
import jax.numpy as jnp

LARGEST = 448  # of E4M3's numbers, the ones without infinities
SMALLEST_SCALE = 2.0**-126  # CPUs may take smaller numbers of float32 for 0
VALUES = jnp.dtype("float8_e4m3fn")


def step_of(largest: jax.Array) -> jax.Array:
    """The float32 step of numbers whose largest magnitude is this one."""
    return jnp.maximum(largest * jnp.float32(1 / LARGEST), jnp.float32(SMALLEST_SCALE))
