"""causal_conv1d in plain jax: shifted copies of all tokens, and for the first ones of a row what its state holds."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.state_rows import StateRows


def causal_conv1d(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    states: jax.Array,
    rows: StateRows,
    *,
    layer: int,
    silu: bool,
) -> tuple[jax.Array, jax.Array]:
    """See api.py."""
    width, places = weight.shape[0], rows.places
    held = states[layer, rows.source]
    taps = weight.astype(jnp.float32)
    total = x.astype(jnp.float32) * taps[-1][None]
    for back in range(1, width):
        shifted = jnp.pad(x, ((back, 0), (0, 0)))[: len(x)]
        before = held[rows.row_of_token, jnp.clip(width - 1 - back + places, 0, width - 2)]
        seen = jnp.where((places >= back)[:, None], shifted, before)
        total += seen.astype(jnp.float32) * taps[-1 - back][None]
    if bias is not None:
        total += bias.astype(jnp.float32)[None]
    out = (jax.nn.silu(total) if silu else total).astype(x.dtype)
    after, to = rows.writes(states.shape[1])
    for column in range(to.shape[1]):
        states = states.at[layer, to[:, column]].set(_latest(x, held, rows, after[:, column]), mode="drop")
    return out, states


def _latest(x: jax.Array, held: jax.Array, rows: StateRows, count: jax.Array) -> jax.Array:
    """[R, W-1, C], the last inputs of each row once it has so many of its tokens, int32[R]."""
    kept = held.shape[1]
    places = count[:, None] - kept + jnp.arange(kept, dtype=jnp.int32)[None]  # of each input in its row; before it if negative
    new = x[jnp.clip(rows.query_start[:-1, None] + places, 0, len(x) - 1)]
    old = jnp.take_along_axis(held, jnp.clip(places + kept, 0, kept - 1)[..., None], axis=1)
    return jnp.where((places >= 0)[..., None], new, old)
