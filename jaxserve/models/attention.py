"""Self-attention up to the attention itself: projections and per-head normalisation.

Rotation, scores, softmax and the KV cache belong to the caller's `attend`: the model knows nothing of pages or requests.
"""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig
from jaxserve.models.norm import HeadsNorm, RMSNorm
from jaxserve.models.parameter import COLUMNS, ROWS, Parameter, Projected, declare, project_columns, project_rows
from jaxserve.models.shards import cache_kv_heads
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.rotate_and_write import Rotation, rotate


class Attend(Protocol):
    """Causal attention of a step's tokens over their own sequences, past positions included."""

    def __call__(
        self,
        layer: int,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array | None,
        rope: Rotation | None,
        options: AttentionOptions,
        sinks: jax.Array | None,
    ) -> jax.Array:
        """Attend with q[T, H, D] over what is cached and the step's own k[T, K, D], v[T, K, D]; returns [T, H, D].

        q and k are rotated by `rope` first, unless it is None: on GPUs in one kernel with storing k and v, or with attention.

        K is `shards.cache_kv_heads`. With `options.value_dim` v and `rope` are None, and the result is [T, H, value_dim].
        `sinks` [H] are logits of keys without value that every token attends to, one a head; None for none.

        The implementation also stores k and v where later steps will find them.
        """


class Attention(nnx.Module):
    """Grouped-query attention (Ainslie et al. 2023): query head h reads kv head h // (H / K).

    `qkv` [E, s, (H + 2K)/s * D] holds for each shard its query heads, its key heads, its value heads; E is twice that of a draft
    head. `out` is [s, H*D/s, E]. With fewer KV heads than shards, K is s: each head is repeated for s/K neighbouring shards,
    whose query heads are those that read it. `sinks` [s, H/s] are the logits of a model that has them (see `Attend`).
    """

    def __init__(self, config: DecoderConfig, layer: int, shards: int, dtype: jnp.dtype) -> None:
        self.layer = layer
        self.heads, self.kv_heads, self.head_dim = config.num_heads, cache_kv_heads(config, shards), config.head_dim
        scale = config.scales.attention or config.head_dim**-0.5
        self.options = AttentionOptions(scale, config.windows[layer], config.scales.attention_cap)
        embed, columns = config.hidden_size, (self.heads + 2 * self.kv_heads) // shards * self.head_dim
        rows = self.heads // shards * self.head_dim
        self.qkv = declare((config.attention_inputs, shards, columns), ("embed", "heads", None), dtype, COLUMNS)
        self.qkv_bias = declare((shards, columns), ("heads", None), dtype) if config.qkv_bias else None
        self.out = declare((shards, rows, embed), ("heads", None, "embed"), dtype, ROWS)
        self.out_bias = declare((embed,), ("embed",), dtype) if config.output_bias else None
        self.q_norm = _norm(self.heads, config, shards, dtype)
        self.k_norm = _norm(self.kv_heads, config, shards, dtype)
        self.sinks = declare((shards, self.heads // shards), ("heads", None), dtype) if config.sinks else None

    @property
    def first(self) -> tuple[Parameter, ...]:
        """The matrices that rows are multiplied by."""
        return (self.qkv,)

    def __call__(self, x: Projected, rope: Rotation | None, attend: Attend) -> jax.Array:
        """x[T, E] of normalised activations to [T, E], before the residual sum; `rope` is None for no positions."""
        q, k, v = self._heads(x)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
            if rope is not None:  # not by `attend`, whose kernels take slices of a product as they lie, and no others
                q, k, rope = rotate(q, rope), rotate(k, rope), None
        sinks = None if self.sinks is None else self.sinks[...].reshape(-1)
        attended = attend(self.layer, q, k, v, rope, self.options, sinks)
        shards = self.out.shape[0]
        return project_rows(attended.reshape(x.shape[0], shards, -1), self.out, self.out_bias)

    def _heads(self, x: Projected) -> tuple[jax.Array, jax.Array, jax.Array]:
        """x[T, E] to q[T, H, D], k[T, K, D], v[T, K, D]."""
        tokens, shards = x.shape[0], self.qkv.shape[1]
        query, key = self.heads // shards, self.kv_heads // shards
        packed = project_columns(x, self.qkv, self.qkv_bias).reshape(tokens, shards, -1, self.head_dim)
        q, k, v = jnp.split(packed, (query, query + key), axis=2)
        return (
            q.reshape(tokens, self.heads, self.head_dim),
            k.reshape(tokens, self.kv_heads, self.head_dim),
            v.reshape(tokens, self.kv_heads, self.head_dim),
        )


def _norm(heads: int, config: DecoderConfig, shards: int, dtype: jnp.dtype) -> RMSNorm | HeadsNorm | None:
    match config.qk_norm:
        case None:
            return None
        case "head":
            return RMSNorm(config.head_dim, "head_dim", config, dtype)
        case "all":
            return HeadsNorm(heads, config, shards, dtype)
