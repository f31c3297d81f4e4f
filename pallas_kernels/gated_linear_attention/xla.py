"""gated_linear_attention in plain jax: all short rows' first tokens at once, then their second ones; chunk after chunk of others.

Within a chunk the recurrence is products of matrices (Yang et al. 2024): with the delta rule what each token adds depends on what
those before it added, a triangular system.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.gated_linear_attention.problem import NORM_EPS, LinearOptions
from pallas_kernels.state_rows import StateRows, few_tokens

CHUNK = 64


class _Tokens(NamedTuple):
    """Of some tokens in float32, scaled and normalised: q, k [T,H,D], v [T,H,V], decay, beta [T,H]."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    decay: jax.Array
    beta: jax.Array


def gated_linear_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decay: jax.Array,
    beta: jax.Array,
    states: jax.Array,
    rows: StateRows,
    *,
    layer: int,
    options: LinearOptions,
) -> tuple[jax.Array, jax.Array]:
    """See api.py."""
    tokens, most, lengths = _wide(q, k, v, decay, beta, options), rows.destination.shape[1], rows.lengths
    if few_tokens(len(q), *rows.destination.shape) is None:
        out, states = _by_place(tokens, states, rows, lengths, layer, delta=options.delta)
        return out.astype(v.dtype), states
    out, states = _by_place(tokens, states, rows, jnp.where(lengths > most, 0, lengths), layer, delta=options.delta)
    return with_long_rows(out.astype(v.dtype), q, k, v, decay, beta, states, rows, most=most, layer=layer, options=options)


def with_long_rows(
    out: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decay: jax.Array,
    beta: jax.Array,
    states: jax.Array,
    rows: StateRows,
    *,
    most: int,
    layer: int,
    options: LinearOptions,
) -> tuple[jax.Array, jax.Array]:
    """What is `out` of rows of `most` tokens, and chunk after chunk of longer ones, with the states that these leave."""
    long = rows.lengths > most
    attended, states = _by_chunk(_wide(q, k, v, decay, beta, options), states, rows, long, layer, delta=options.delta)
    return jnp.where(long[rows.row_of_token][:, None, None], attended.astype(out.dtype), out), states


def _wide(q: jax.Array, k: jax.Array, v: jax.Array, decay: jax.Array, beta: jax.Array, options: LinearOptions) -> _Tokens:
    group = v.shape[1] // q.shape[1]
    wide = [array.astype(jnp.float32) for array in (q, k)]
    if options.l2_norm:
        wide = [array * jax.lax.rsqrt(jnp.sum(jnp.square(array), axis=-1, keepdims=True) + NORM_EPS) for array in wide]
    queries, keys = (jnp.repeat(array, group, axis=1) for array in (wide[0] * options.scale, wide[1]))
    return _Tokens(queries, keys, v.astype(jnp.float32), decay, beta)


def _by_place(
    tokens: _Tokens, states: jax.Array, rows: StateRows, lengths: jax.Array, layer: int, *, delta: bool
) -> tuple[jax.Array, jax.Array]:
    """The tokens of all rows that have the same place in their row together; `lengths` int32[R] are 0 for rows of others."""
    size = len(tokens.v)
    after, to = rows.writes(states.shape[1])

    def step(place: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        state, states, out = carry
        live = place < lengths
        index = jnp.where(live, rows.query_start[:-1] + place, 0)
        one = _Tokens(*(array[index] for array in tokens))
        faded = state * jnp.exp(one.decay)[..., None, None]
        new = one.v - jnp.einsum("rhd,rhdv->rhv", one.k, faded) if delta else one.v
        added = jnp.einsum("rhd,rhv->rhdv", one.k, new * one.beta[..., None])
        state = jnp.where(live[:, None, None, None], faded + added, state)
        out = out.at[jnp.where(live, index, size)].set(jnp.einsum("rhd,rhdv->rhv", one.q, state), mode="drop")
        for column in range(to.shape[1]):
            here = jnp.where(live & (after[:, column] == place + 1), to[:, column], jnp.int32(states.shape[1]))
            states = states.at[layer, here].set(state, mode="drop")
        return state, states, out

    begun = states[layer, rows.source], states, jnp.zeros_like(tokens.v)
    _, states, out = jax.lax.fori_loop(jnp.int32(0), jnp.max(lengths), step, begun)
    return out, states


def _by_chunk(
    tokens: _Tokens, states: jax.Array, rows: StateRows, chosen: jax.Array, layer: int, *, delta: bool
) -> tuple[jax.Array, jax.Array]:
    """Chunks of `chosen` rows, bool[R], one after the other.

    None goes on behind the end of a row, or behind a token whose state is written.
    """
    size = min(CHUNK, len(tokens.v))
    after, to = rows.writes(states.shape[1])
    firsts, ends, of_row = _segments(rows, after)
    counts = jnp.where(chosen[of_row], -(-(ends - firsts) // size), 0)
    chunks_before = jnp.cumsum(counts) - counts
    padded = _Tokens(*(jnp.pad(array, ((0, size), *[(0, 0)] * (array.ndim - 1))) for array in tokens))
    nowhere = jnp.int32(states.shape[1])

    def step(chunk: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        state, states, out = carry
        segment = jnp.searchsorted(chunks_before, chunk, side="right").astype(jnp.int32) - 1
        row, first = of_row[segment], firsts[segment] + (chunk - chunks_before[segment]) * size
        end = jnp.minimum(first + size, ends[segment])
        start = rows.query_start[row]
        state = jnp.where(first == start, states[layer, rows.source[row]], state)
        here = _Tokens(*(jax.lax.dynamic_slice_in_dim(array, first, size) for array in padded))
        state, attended = _chunk(here, end - first, state, delta=delta)
        out = jax.lax.dynamic_update_slice_in_dim(out, attended, first, axis=0)  # its rest is the next chunk's
        for column in range(to.shape[1]):
            place = jnp.where(end - start == after[row, column], to[row, column], nowhere)
            states = states.at[layer, place].set(state, mode="drop")
        return state, states, out

    begun = jnp.zeros_like(states[layer, 0]), states, jnp.zeros_like(padded.v)
    _, states, out = jax.lax.fori_loop(jnp.int32(0), jnp.sum(counts, dtype=jnp.int32), step, begun)
    return out[: len(tokens.v)], states


def _segments(rows: StateRows, after: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rows cut behind so many of their tokens, int32[R, N]: where the parts begin and end, and whose they are, int32[R * N]."""
    cuts = rows.query_start[:-1, None] + jnp.sort(after, axis=1)
    firsts = jnp.concatenate([rows.query_start[:-1, None], cuts[:, :-1]], axis=1)
    ends = cuts.at[:, -1].set(rows.query_start[1:])
    count = after.shape[1]
    return firsts.reshape(-1), ends.reshape(-1), jnp.repeat(jnp.arange(len(after), dtype=jnp.int32), count)


def _chunk(tokens: _Tokens, count: jax.Array, state: jax.Array, *, delta: bool) -> tuple[jax.Array, jax.Array]:
    """The first `count` of C tokens, from a state [H,D,V]: the state after them, and what they attend to, [C,H,V]."""
    size = len(tokens.v)
    real = jnp.arange(size, dtype=jnp.int32) < count
    q, k, v, decay, beta = (
        jnp.where(jnp.expand_dims(real, tuple(range(1, array.ndim))), array, 0).swapaxes(0, 1) for array in tokens
    )
    faded = jnp.cumsum(decay, axis=1)  # [H,C], logarithms
    places = jnp.arange(size, dtype=jnp.int32)
    seen = places[:, None] >= places[None]
    between = jnp.exp(
        jnp.where(seen[None], faded[:, :, None] - faded[:, None], -jnp.inf)
    )  # [H,C,C], from an earlier to a later one
    new = v * beta[..., None]
    if delta:
        keys = jnp.einsum("hcd,hed->hce", k, k) * between * beta[..., None]
        system = jnp.where((places[:, None] > places[None])[None], keys, 0)
        known = jnp.einsum("hcd,hdv->hcv", k * (beta * jnp.exp(faded))[..., None], state)
        new = jax.lax.linalg.triangular_solve(system, new - known, left_side=True, lower=True, unit_diagonal=True)
    attended = jnp.einsum("hcd,hdv->hcv", q * jnp.exp(faded)[..., None], state)
    attended += jnp.einsum("hce,hev->hcv", jnp.einsum("hcd,hed->hce", q, k) * between, new)
    left = jnp.exp(faded[:, -1:] - faded)  # of what each token adds, at the end
    state = state * jnp.exp(faded[:, -1])[:, None, None] + jnp.einsum("hcd,hcv->hdv", k * left[..., None], new)
    return state, attended.swapaxes(0, 1)
