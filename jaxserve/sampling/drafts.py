"""Rows that choose several tokens in a step: one after each of their drafts, up to the first draft that is wrong.

A draft is right if it is the very token that the row chooses in its place, with the key of that position: a row gets the tokens
that it would get one at a time. Penalties count, at each place, the drafts before it.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxserve.sampling.batch import SamplingBatch


def sampled_places(query_start: jax.Array, num_drafts: jax.Array, max_drafts: int) -> jax.Array:
    """Which tokens of a step are followed by a chosen one: int32[R,1+max_drafts], a row's last one again where it has fewer.

    `query_start` int32[R+1] and `num_drafts` int32[R] are the rows'.
    """
    last = query_start[1:, None] - 1
    first = last - num_drafts[:, None]
    return jnp.clip(first + jnp.arange(1 + max_drafts, dtype=jnp.int32)[None], 0, jnp.maximum(last, 0))


def each_draft(batch: SamplingBatch, tokens: jax.Array) -> SamplingBatch:
    """A batch of rows as one of N times as many, each for the next position of its row.

    `tokens` int32[R,N] are those before each position: the second and later ones are drafts.
    """
    rows, width = tokens.shape
    if width == 1:
        return batch
    place = jnp.arange(width, dtype=jnp.int32)
    before = place[None, 1:] <= place[:, None]  # of the drafts, which are behind each other
    offsets = jnp.tile(place, rows)
    return replace(
        batch,
        words=jnp.repeat(batch.words, width, axis=0),
        position=jnp.repeat(batch.position, width) + offsets,
        slot=jnp.repeat(batch.slot, width),
        drafts=jnp.where(before[None], tokens[:, None, 1:], -1).reshape(rows * width, width - 1),
    )


def num_chosen(chosen: jax.Array, tokens: jax.Array, samples: jax.Array, num_drafts: jax.Array) -> jax.Array:
    """How many of the tokens int32[R,N] that rows chose count: int32[R].

    Args:
        chosen: the tokens.
        tokens: int32[R,N], the tokens that they were chosen after: the second and later ones are drafts.
        samples: bool[R], which rows choose at all.
        num_drafts: int32[R].
    """
    place = jnp.arange(1, chosen.shape[1], dtype=jnp.int32)
    right = (tokens[:, 1:] == chosen[:, :-1]) & (place[None] <= num_drafts[:, None])
    return jnp.where(samples, 1 + jnp.cumprod(right, axis=1, dtype=jnp.int32).sum(axis=1, dtype=jnp.int32), 0)
