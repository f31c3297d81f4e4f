"""Multi-head latent attention (DeepSeek-AI 2024): keys and values of all heads are projections of one short vector a token.

That vector, the latent, is all that is cached. Keys and values are never made: a head's projection from latents to keys is
applied to its query instead, and the one to values to what the head has attended to ("absorbed"). So every head attends to
the latents themselves, as if to one KV head whose values are the beginnings of its keys. Where a layer has an indexer, its key is
cached behind the latent's, and every head attends to the tokens that it chooses alone. Layers that share what another one chose
have zeros there.

For a chunk of many tokens it is cheaper to make keys and values of its row once: a query and a key then cost a head
nope + rope + value multiplications and not 2 * kv_rank + rope (320 and not 1,088 in DeepSeek-V3), against
kv_rank * (nope + value) for every cached token and head, at every chunk. That is the caller's `attend` to do, which is given
what is needed for both (`LatentHeads`).
"""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.attention import Attend
from jaxserve.models.config import DecoderConfig
from jaxserve.models.indexer import LightningIndexer
from jaxserve.models.latent import Latent
from jaxserve.models.latent_heads import LatentHeads
from jaxserve.models.norm import RMSNorm
from jaxserve.models.parameter import COLUMNS, ROWS, Parameter, Projected, declare, project_columns, project_rows
from jaxserve.models.rope import rotate_pairs
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.rotate_and_write import Rotation

NORM_EPS = 1e-6
"""Of the norms of latents: DeepSeek's own code and transformers give them this one, whatever the config says."""


class LatentAttention(nnx.Module):
    """Attention in the place of `attention.Attention` where the config has a `latent`.

    `down` [E, 1, X] makes the queries' latent, if there is one, the cached latent and the key that all heads share; every
    device has all of it. `query` [query rank or E, s, H/s * (nope + rope)] holds whole heads, `key_up` [H, nope, kv_rank] and
    `value_up` [H, value, kv_rank] a matrix a head, and `out` is [s, H * value/s, E].
    """

    def __init__(self, config: DecoderConfig, latent: Latent, layer: int, shards: int, dtype: jnp.dtype) -> None:
        embed, heads = config.hidden_size, config.num_heads
        self.layer, self.heads, self.latent = layer, heads, latent
        scale = config.scales.attention
        if scale is None:
            scale = 1 / math.sqrt(latent.nope_dim + latent.rope_dim)
        self.options = AttentionOptions(scale, config.windows[layer], config.scales.attention_cap, latent.kv_rank)
        norms = replace(config, norm_eps=NORM_EPS)
        rank = latent.query_rank
        width = (rank or 0) + latent.key_dim
        self.down = declare((embed, 1, width), ("embed", None, None), dtype, COLUMNS)
        self.query_norm = None if rank is None else RMSNorm(rank, "embed", norms, dtype)
        self.kv_norm = RMSNorm(latent.kv_rank, "embed", norms, dtype)
        indexer = latent.indexer_of(layer)
        self.indexer = None if indexer is None else LightningIndexer(indexer, layer, embed, rank or embed, dtype)
        columns = heads // shards * (latent.nope_dim + latent.rope_dim)
        self.query = declare((rank or embed, shards, columns), ("embed", "heads", None), dtype, COLUMNS)
        self.key_up = declare((heads, latent.nope_dim, latent.kv_rank), ("heads", None, None), dtype)
        self.value_up = declare((heads, latent.value_dim, latent.kv_rank), ("heads", None, None), dtype)
        self.out = declare((shards, heads // shards * latent.value_dim, embed), ("heads", None, "embed"), dtype, ROWS)

    @property
    def first(self) -> tuple[Parameter, ...]:
        """The matrices that rows are multiplied by."""
        own = (self.down, self.query) if self.query_norm is None else (self.down,)
        return own if self.indexer is None else (*own, *self.indexer.first)

    def __call__(self, x: Projected, rope: Rotation | None, attend: Attend) -> jax.Array:
        """x[T, E] of normalised activations to [T, E], before the residual sum; `rope` rotates the `rope_dim` dimensions."""
        tokens, shards = x.shape[0], self.out.shape[0]
        queries, latents = self._down(x, rope)
        index = None if self.indexer is None else self.indexer(x, queries, rope)
        if index is None:
            latents = jnp.pad(latents, ((0, 0), (0, self.latent.cached - self.latent.key_dim)))
        else:
            latents = jnp.concatenate([latents, index.keys], axis=1)
        q = project_columns(queries, self.query, None).reshape(tokens, self.heads, -1)
        q_nope, q_rope = jnp.split(q, (self.latent.nope_dim,), axis=2)
        q = jnp.concatenate([q_nope, _rotated(q_rope, rope)], axis=2)
        heads = LatentHeads(q, self.key_up[...], self.value_up[...])
        k = jnp.broadcast_to(latents[:, None], (tokens, shards, latents.shape[1]))  # one a device
        values = attend(self.layer, heads.absorbed(), k, None, None, self.options, None, index, heads)
        return project_rows(values.reshape(tokens, shards, -1), self.out, None)

    def _down(self, x: Projected, rope: Rotation | None) -> tuple[Projected, jax.Array]:
        """x[T, E] to what queries are projected from, [T, query rank or E], and the key that heads share, [T, kv_rank + rope]."""
        rank, kv_rank = self.latent.query_rank or 0, self.latent.kv_rank
        queries, latent, key = jnp.split(project_columns(x, self.down, None)[:, 0], (rank, rank + kv_rank), axis=1)
        cached = jnp.concatenate([self.kv_norm(latent), _rotated(key[:, None], rope)[:, 0]], axis=1)
        return x if self.query_norm is None else self.query_norm(queries), cached


def _rotated(x: jax.Array, rope: Rotation | None) -> jax.Array:
    return x if rope is None else rotate_pairs(x, rope)
