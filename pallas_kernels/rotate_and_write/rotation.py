"""Rotary position embedding of queries or keys, given cosines and sines (Su et al. 2021).

The rotation pairs dimension i with dimension i + half, the layout of Hugging Face checkpoints.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Rotation(NamedTuple):
    """Cosine and sine of every token's angles, each float32[T, half of the rotated dimensions]."""

    cos: jax.Array
    sin: jax.Array


def rotate(x: jax.Array, rope: Rotation) -> jax.Array:
    """Rotate queries or keys x[T, heads, D], computing in float32; the result has x's dtype. Dimensions beyond `rope` stay."""
    half = rope.cos.shape[-1]
    first, second, rest = jnp.split(x.astype(jnp.float32), (half, 2 * half), axis=-1)
    cos, sin = rope.cos[:, None, :], rope.sin[:, None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1).astype(x.dtype)


def packed_heads(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Put heads side by side, [T, H + 2K, D]: no operation where they are slices of a product, as a model cuts them."""
    # [T, 1, H + 2K, D] as a device has them: XLA knows slices again by their shape alone.
    return jnp.concatenate([heads[:, None] for heads in (q, k, v)], axis=2)[:, 0]
