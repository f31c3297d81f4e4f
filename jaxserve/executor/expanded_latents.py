"""Latent attention of a step in two: rows of many tokens attend to keys and values of every head, the others to the latents.

Making keys and values costs a row the same for one token as for a thousand; with them each token attends for a third of the
multiplications. So a step has both kinds of rows, and each kind is moved to the beginning of a step of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxserve.models.latent_heads import LatentHeads
from jaxserve.step.batch import DeviceBatch
from pallas_kernels.expanded_attention import head_dim, pages_needed
from pallas_kernels.ragged_paged_attention.query_tiles import Rows, token_rows

WORKSPACE_BYTES = 256 * 2**20
"""Of keys and values that are made at once, a device; rows that do not fit with one head attend to latents."""


class Part(NamedTuple):
    """Some rows of a step, their tokens in front; the other rows are there without tokens.

    Attributes:
        query_start, kv_length: int32[R+1], int32[R], of that step.
        token: int32[T], the step's token that is at each place; any behind the last.
        place: int32[T], where each of the step's tokens is; any of those that are not in it.
    """

    query_start: jax.Array
    kv_length: jax.Array
    token: jax.Array
    place: jax.Array

    @classmethod
    def of(cls, rows: Rows, chosen: jax.Array, tokens: int) -> Part:
        """The rows that are chosen, bool[R], of a step of T tokens."""
        counts = jnp.where(chosen, rows.counts, 0)
        start = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(counts)])
        each = jnp.arange(tokens, dtype=jnp.int32)

        def moved(found: Rows, there: jax.Array) -> jax.Array:
            row = token_rows(found, each)[0]
            return jnp.clip(each - found.query_start[row] + there[row], 0, tokens - 1)

        own = rows._replace(query_start=start)
        return cls(start, jnp.where(chosen, rows.kv_length, 0), moved(own, rows.query_start), moved(rows, start))


class Split(NamedTuple):
    """A step's rows of many tokens, and the others.

    Attributes:
        long, short: the parts.
        is_long: bool[T], which tokens are of the former.
        num_pages: that the former have together at most.
    """

    long: Part
    short: Part
    is_long: jax.Array
    num_pages: int

    @classmethod
    def of(cls, batch: DeviceBatch, group: int, heads: LatentHeads, page_size: int) -> Split | None:
        """None if the step has too few tokens for any row to be worth it."""
        tokens, worth = heads.q.shape[0], expanded_from(heads)
        if worth is None or tokens < worth:
            return None
        rows = Rows(*(jnp.asarray(array) for array in (batch.page_table[group], batch.query_start, batch.kv_length)))
        most = WORKSPACE_BYTES // (page_size * token_bytes(heads))
        num_pages = min(most, rows.page_table.shape[1] + -(-tokens // page_size))  # of the longest row, and a step's prompts
        long = rows.counts >= worth
        long &= jnp.cumsum(jnp.where(long, pages_needed(rows, page_size), 0)) <= num_pages
        row = token_rows(rows, jnp.arange(tokens, dtype=jnp.int32))[0]
        return cls(Part.of(rows, long, tokens), Part.of(rows, ~long, tokens), long[row], num_pages)

    def merge(self, long: jax.Array, short: jax.Array) -> jax.Array:
        """What was computed of the two parts, in the step's order."""
        return jnp.where(self.is_long[:, None, None], long[self.long.place], short[self.short.place])


def expanded_from(heads: LatentHeads) -> int | None:
    """Tokens of a row from which its keys and values are made; None if they never are.

    A query and a key cost a head less then, but every number of a key or value as many multiplications as a latent has numbers;
    reading latents and writing keys and values half as much again (measured on a CPU).
    """
    key, made, rank = heads.q.shape[2], heads.key_up.shape[1] + heads.value_up.shape[1], heads.key_up.shape[2]
    absorbed, expanded = 2 * rank + key - heads.key_up.shape[1], key + heads.value_up.shape[1]
    return None if absorbed <= expanded else -(-3 * rank * made // (2 * (absorbed - expanded)))


def token_bytes(heads: LatentHeads) -> int:
    """Of a token's key and value of one head in the workspace."""
    return 2 * head_dim(heads.q.shape[2], heads.value_up.shape[1]) * heads.q.dtype.itemsize


def heads_at_once(heads: LatentHeads, tokens: int) -> int:
    """Of a device's heads, those whose keys and values of so many tokens fit the workspace; at least one."""
    count = heads.q.shape[1]
    fit = max(1, WORKSPACE_BYTES // (token_bytes(heads) * tokens))
    return next(some for some in range(min(fit, count), 0, -1) if count % some == 0)
