"""Attention without pages and without kernels, for whoever runs a decoder over one whole sequence."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxserve.models.indexer import Index
from jaxserve.models.latent_heads import LatentHeads
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.rotate_and_write import Rotation, rotate


def dense_attend(
    layer: int,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array | None,
    rope: Rotation | None,
    options: AttentionOptions,
    sinks: jax.Array | None,
    index: Index | None = None,
    heads: LatentHeads | None = None,
) -> jax.Array:
    """Causal attention over one sequence, or a window of one that has nothing before it, in float32; see `Attend`."""
    if rope is not None:
        q, k = rotate(q, rope), rotate(k, rope)
    v = k[..., : options.value_dim] if v is None else v
    tokens, num_heads, head_dim = q.shape
    k = k[..., :head_dim]
    grouped = q.reshape(tokens, k.shape[1], -1, head_dim).astype(jnp.float32)
    scores = jnp.einsum("tkgd,ukd->kgtu", grouped, k.astype(jnp.float32)) * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    distance = jnp.arange(tokens)[:, None] - jnp.arange(tokens)[None, :]
    seen = (distance >= 0) & (distance < (tokens if options.window is None else options.window))
    if options.chunk is not None:
        chunk = jnp.arange(tokens) // options.chunk
        seen &= chunk[:, None] == chunk[None, :]
    if index is not None:
        seen = chosen(index, seen)
    scores = jnp.where(seen[None, None], scores, -jnp.inf)
    if sinks is not None:
        sink = sinks.astype(jnp.float32).reshape(*scores.shape[:2], 1, 1)
        scores = jnp.concatenate([scores, jnp.broadcast_to(sink, (*scores.shape[:3], 1))], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., :tokens]
    attended = jnp.einsum("kgtu,ukd->tkgd", weights, v.astype(jnp.float32))
    attended = attended.reshape(tokens, num_heads, v.shape[-1]).astype(q.dtype)
    return attended if heads is None else heads.values(attended)


def chosen(index: Index, seen: jax.Array) -> jax.Array:
    """bool[T, T]: which of the tokens that a token may see, bool[T, T], it attends to."""
    tokens = seen.shape[0]
    products = jnp.einsum("tin,un->itu", index.q.astype(jnp.float32), index.keys.astype(jnp.float32))
    scores = jnp.einsum("ti,itu->tu", index.weights, jax.nn.relu(products))
    best = jax.lax.top_k(jnp.where(seen, scores, -jnp.inf), min(index.top_k, tokens))[1]
    among = jnp.zeros(seen.shape, bool).at[jnp.arange(tokens)[:, None], best].set(True)
    return seen & among
