"""Orders of few numbers, as programs for GPUs need them: without sorting. XLA sorts there by CUB, which no CUDA graph can hold.

Each number is compared with each other, which is one kernel. CPUs sort: they have less to compare with.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def ascending(keys: jax.Array) -> jax.Array:
    """The places of keys int32[N] from the lowest key on, ties in their order: int32[N]."""

    def by_sorting(keys: jax.Array) -> jax.Array:
        return jnp.argsort(keys, stable=True).astype(jnp.int32)

    order: jax.Array = lax.platform_dependent(keys, cpu=by_sorting, default=compared)
    return order


def compared(keys: jax.Array) -> jax.Array:
    """`ascending`, by comparing each key with each."""
    place = jnp.arange(len(keys), dtype=jnp.int32)
    rank = _ranks(keys[None], place)[0]
    return jnp.zeros_like(place).at[rank].set(place, mode="promise_in_bounds", unique_indices=True)


def largest(scores: jax.Array, count: int) -> jax.Array:
    """The places of the `count` largest of scores f32[T,N], ties in their order: int32[T,count]. Any places in rows with NaN."""

    def by_sorting(scores: jax.Array) -> jax.Array:
        return lax.top_k(scores, count)[1].astype(jnp.int32)

    def by_comparing(scores: jax.Array) -> jax.Array:
        return ranked(scores)[:, :count]

    places: jax.Array = lax.platform_dependent(scores, cpu=by_sorting, default=by_comparing)
    return places


def ranked(scores: jax.Array) -> jax.Array:
    """The places of scores f32[T,N] from the largest on, ties in their order, by comparing each with each: int32[T,N]."""
    place = jnp.arange(scores.shape[1], dtype=jnp.int32)
    there = _ranks(-scores, place)[:, None, :] == place[None, :, None]
    return jnp.min(jnp.where(there, place[None, None, :], scores.shape[1] - 1), axis=2)


def _ranks(keys: jax.Array, place: jax.Array) -> jax.Array:
    """How many of the keys [T,N] of a row come before each of them: int32[T,N]. `place` is 0 to N."""
    one, other = keys[:, :, None], keys[:, None, :]
    before = (other < one) | ((other == one) & (place[None, None, :] < place[None, :, None]))
    return jnp.sum(before, axis=2, dtype=jnp.int32)
