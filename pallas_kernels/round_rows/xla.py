"""round_rows in XLA, which reads a row again for its largest magnitude, and often in a kernel of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.round_rows.e4m3 import VALUES, step_of
from pallas_kernels.round_rows.problem import Activation, Gate, Norm


def round_rows(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """See api.py; x[T, ..., I]."""
    wide = x.astype(jnp.float32)
    steps = step_of(jnp.max(jnp.abs(wide), axis=-1))
    return (wide / steps[..., None]).astype(VALUES), steps


def round_normed(
    x: jax.Array, added: jax.Array | None, scale: jax.Array, *, norm: Norm
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """See api.py."""
    total = x if added is None else x + added
    wide, factor = total.astype(jnp.float32), scale.astype(jnp.float32)[None]
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + norm.eps)
    return total, round_rows((wide * inverse * (factor + norm.offset if norm.offset else factor)).astype(x.dtype))


def round_gated(sums: jax.Array, gate: Gate, *, activation: Activation, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """See api.py."""
    scaled = sums.astype(jnp.float32) * gate.steps[:, None, None] * gate.scales[None]
    return round_rows(activation(*jnp.split(scaled, 2, axis=-1)).astype(dtype))
