"""Following the target with a draft head: it goes on from the target's hidden states, each with the token that came after it.

What a head makes of the hidden state at position p and the token at p + 1 has position p in its cache. The last hidden state of a
step waits, in its row's slot, for the token that the step chooses or the next chunk brings.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxserve.executor.draft_step import DraftModel, DraftState, Follow, Handed, cache_slots, own_pages, run_head
from jaxserve.models.binding import Params, UsedRows, bind
from jaxserve.step.batch import DeviceBatch


def make_head_follow(draft: DraftModel, mesh: Mesh, page_size: int) -> Follow:
    """The program that computes a step's tokens for a head's cache, behind the choice of tokens."""

    def follow(params: Params, state: DraftState, latest: jax.Array, handed: Handed) -> DraftState:
        assert handed.tapped is not None, "the target hands on hidden states"
        batch = own_pages(handed.batch, draft.group)
        rows = jnp.sum(batch.kv_length > 0, dtype=jnp.int32)
        used = UsedRows(batch.query_start[-1], rows)
        entry = bind(draft.config, params).entry
        assert entry is not None
        hidden = entry.hidden(handed.tapped)
        before, behind = _pairs(state, batch, hidden, page_size)
        cache, _, _ = run_head(draft, mesh, params, state.cache, behind, used, before)
        return _carried(replace(state, cache=cache), batch, hidden, latest)

    return follow


def _pairs(state: DraftState, batch: DeviceBatch, hidden: jax.Array, page_size: int) -> tuple[jax.Array, DeviceBatch]:
    """Of every token the hidden state before it [T,E], and the batch of them, each a position earlier than its token.

    A token whose hidden state is not known goes to the null page: the first of a prompt, and the first after a prefix hit,
    before which the cache has what was computed with another token.
    """
    assert state.known is not None
    assert state.place is not None
    index = jnp.arange(batch.tokens.shape[0], dtype=jnp.int32)
    row = jnp.sum(index[:, None] >= batch.query_start[None, 1:], axis=1, dtype=jnp.int32)
    row = jnp.minimum(row, batch.kv_length.shape[0] - 1)
    slot, first = batch.slots[row], index == batch.query_start[row]
    before = jnp.where(first[:, None], state.known[slot], jnp.roll(hidden, 1, axis=0))
    places = batch.positions - 1
    known = (places >= 0) & (~first | (state.place[slot] == places)) & (index < batch.query_start[-1])
    places = jnp.maximum(places, 0)
    slots = jnp.where(known, cache_slots(batch.page_table[0][row], places, page_size), 0)
    return before, replace(batch, positions=places, kv_slots=slots[None], kv_length=jnp.maximum(batch.kv_length - 1, 0))


def _carried(state: DraftState, batch: DeviceBatch, hidden: jax.Array, latest: jax.Array) -> DraftState:
    """The state with the hidden state of each row's last token: of those that chose one, the last of those that were right."""
    assert state.known is not None
    assert state.place is not None
    end = jnp.where(batch.rows.samples, latest[batch.slots, 1] - 1, batch.kv_length)  # tokens whose hidden states there are
    index = jnp.clip(end - 1 - batch.kv_length + batch.query_start[1:], 0, hidden.shape[0] - 1)
    return replace(
        state,
        known=state.known.at[batch.slots].set(hidden[index]),
        place=state.place.at[batch.slots].set(end - 1),
    )
