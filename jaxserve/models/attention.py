"""Self-attention up to the attention itself: projections and per-head normalisation.

Rotation, scores, softmax and the KV cache belong to the caller's `attend`: the model knows nothing of pages or requests.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig
from jaxserve.models.indexer import Index
from jaxserve.models.latent_heads import LatentHeads
from jaxserve.models.norm import HeadsNorm, RMSNorm, unscaled_rms
from jaxserve.models.parameter import COLUMNS, ROWS, Parameter, Projected, declare, project_columns, project_rows
from jaxserve.models.rope import deinterleave
from jaxserve.models.shards import held_kv_heads
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
        index: Index | None = None,
        heads: LatentHeads | None = None,
    ) -> jax.Array:
        """Attend with q[T, H, D] over what is cached and the step's own k[T, K, D], v[T, K, D]; returns [T, H, D].

        q and k are rotated by `rope` first, unless it is None: on GPUs in one kernel with storing k and v, or with attention.

        K is `shards.held_kv_heads`. With `options.value_dim` k are latents, v and `rope` are None, and the result is what `heads`
        make of what they attend to, [T, H, V], or [T, H, value_dim] without `heads`. Theirs may be attended to instead.
        `sinks` [H] are logits of keys without value that every token attends to, one a head; None for none.
        With an `index` tokens attend to those alone that it chooses, to the first D numbers of k, behind which are its keys.
        There are neither sinks nor a window then.

        The implementation also stores k and v where later steps will find them: once, of layers that attend to the same.
        """


class SharedKeys:
    """An Attend that remembers keys and values of layers, for those that attend to the same.

    Args:
        attend: what attends.
        sources: the layers that others share keys and values with.
    """

    def __init__(self, attend: Attend, sources: Collection[int]) -> None:
        self._attend = attend
        self._sources = sources
        self._kept: dict[int, tuple[jax.Array, jax.Array | None]] = {}

    def __call__(
        self,
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
        """As Attend says."""
        if layer in self._sources:
            if rope is not None:
                q, k, rope = rotate(q, rope), rotate(k, rope), None
            self._kept[layer] = k, v
        return self._attend(layer, q, k, v, rope, options, sinks, index, heads)

    def again(self, layer: int, source: int, q: jax.Array, options: AttentionOptions, sinks: jax.Array | None) -> jax.Array:
        """Attend with rotated q[T, H, D] to what an earlier layer, `source`, has attended to."""
        k, v = self._kept[source]
        return self._attend(layer, q, k, v, None, options, sinks)


class SharedChoices:
    """An Attend that has an index again for the layers that share what it chooses: those behind its own, up to the next one's."""

    def __init__(self, attend: Attend) -> None:
        self._attend = attend
        self._latest: Index | None = None

    def __call__(
        self,
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
        """As Attend says."""
        self._latest = self._latest if index is None else index
        return self._attend(layer, q, k, v, rope, options, sinks, self._latest, heads)


class ScaledQueries:
    """An Attend whose queries are in some layers multiplied by factors[T] of their positions; see `positions.QueryScale`."""

    def __init__(self, attend: Attend, factors: jax.Array, layers: Collection[int]) -> None:
        self._attend, self._factors, self._layers = attend, factors[:, None, None], layers

    def __call__(
        self,
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
        """As Attend says."""
        if layer in self._layers:
            q = self._scaled(q)
            heads = None if heads is None else heads._replace(q=self._scaled(heads.q))
        return self._attend(layer, q, k, v, rope, options, sinks, index, heads)

    def _scaled(self, q: jax.Array) -> jax.Array:
        return (q.astype(jnp.float32) * self._factors).astype(q.dtype)


class Attention(nnx.Module):
    """Grouped-query attention (Ainslie et al. 2023): query head h reads kv head h // (H / K).

    `qkv` [E, s, (H + 2K)/s * D] holds for each shard its query heads, its key heads, its value heads; E is twice that of a draft
    head. Where values are keys there are no columns of values, and where a layer attends to another's keys and values none of
    either. `out` is [s, H*D/s, E]. With fewer KV heads than shards, K is s: each head is repeated for s/K neighbouring shards,
    whose query heads are those that read it. With an output gate each query head's columns have those of its gate behind them.
    `sinks` [s, H/s] are the logits of a model that has them (see `Attend`).
    """

    def __init__(self, config: DecoderConfig, layer: int, shards: int, dtype: jnp.dtype) -> None:
        self.layer, self.source = layer, config.kv_source(layer)
        own, kept = config.heads_of(layer), self.source == layer
        self.heads, self.kv_heads, self.head_dim = config.num_heads, held_kv_heads(own.kv_heads, shards), own.head_dim
        rope = config.ropes[layer]
        self.interleaved = rope is not None and rope.interleaved
        self.projected = (2 - own.values_are_keys) if kept else 0  # of keys and values
        self.gated = config.output_gate
        scale = config.scales.attention or self.head_dim**-0.5
        self.options = AttentionOptions(scale, soft_cap=config.scales.attention_cap, **config.seen_by(layer))
        columns = ((1 + self.gated) * self.heads + self.projected * self.kv_heads) // shards * self.head_dim
        embed = config.hidden_size
        rows = self.heads // shards * self.head_dim
        self.qkv = declare((config.attention_inputs, shards, columns), ("embed", "heads", None), dtype, COLUMNS)
        self.qkv_bias = declare((shards, columns), ("heads", None), dtype) if config.qkv_bias else None
        self.out = declare((shards, rows, embed), ("heads", None, "embed"), dtype, ROWS)
        self.out_bias = declare((embed,), ("embed",), dtype) if config.output_bias else None
        self.q_norm = _norm(self.heads, self.head_dim, config, shards, dtype)
        self.k_norm = _norm(self.kv_heads, self.head_dim, config, shards, dtype) if kept else None
        self.qk_norm_eps = config.norm_eps if config.qk_norm == "rotated" and rope is not None else None
        self.v_norm_eps = config.norm_eps if config.value_norm else None
        self.sinks = declare((shards, self.heads // shards), ("heads", None), dtype) if config.sinks else None

    @property
    def first(self) -> tuple[Parameter, ...]:
        """The matrices that rows are multiplied by."""
        return (self.qkv,)

    def __call__(self, x: Projected, rope: Rotation | None, attend: Attend) -> jax.Array:
        """x[T, E] of normalised activations to [T, E], before the residual sum; `rope` is None for no positions."""
        q, kv, gate = self._heads(x)
        sinks = None if self.sinks is None else self.sinks[...].reshape(-1)
        if self.q_norm is not None:
            q = self.q_norm(q)
        if self.qk_norm_eps is not None:
            q = unscaled_rms(q, self.qk_norm_eps)
        if rope is not None and self.interleaved:
            q = deinterleave(q, rope)
        if kv is None:
            assert isinstance(attend, SharedKeys), "keys and values of other layers are there"
            if rope is not None:
                q = rotate(q, rope)
            attended = attend.again(self.layer, self.source, q, self.options, sinks)
        else:
            k, v = kv if self.k_norm is None else (self.k_norm(kv[0]), kv[1])
            if self.qk_norm_eps is not None:
                k = unscaled_rms(k, self.qk_norm_eps)
            if rope is not None and self.interleaved:
                k = deinterleave(k, rope)
            if self.v_norm_eps is not None:
                v = unscaled_rms(v, self.v_norm_eps)
            if rope is not None and (self.interleaved or self.q_norm is not None or self.qk_norm_eps is not None):
                q, k, rope = rotate(q, rope), rotate(k, rope), None  # kernels of `attend` take slices of a product as they lie
            attended = attend(self.layer, q, k, v, rope, self.options, sinks)
        if gate is not None:
            attended *= jax.nn.sigmoid(gate)
        shards = self.out.shape[0]
        return project_rows(attended.reshape(x.shape[0], shards, -1), self.out, self.out_bias)

    def _heads(self, x: Projected) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None, jax.Array | None]:
        """x[T, E] to q[T, H, D], k[T, K, D] and v[T, K, D] if the layer has some, and the logits of a gate [T, H, D] likewise."""
        tokens, shards = x.shape[0], self.qkv.shape[1]
        query, key = (1 + self.gated) * self.heads // shards, self.kv_heads // shards
        packed = project_columns(x, self.qkv, self.qkv_bias).reshape(tokens, shards, -1, self.head_dim)
        q, *kv = jnp.split(packed, [query + part * key for part in range(self.projected)], axis=2)
        gate = None
        if self.gated:
            pairs = q.reshape(tokens, self.heads, 2, self.head_dim)
            q, gate = pairs[:, :, 0], pairs[:, :, 1]
        q = q.reshape(tokens, self.heads, self.head_dim)
        if not kv:
            return q, None, gate
        keys, values = (each.reshape(tokens, self.kv_heads, self.head_dim) for each in (kv[0], kv[-1]))
        return q, (keys, values), gate


def _norm(heads: int, head_dim: int, config: DecoderConfig, shards: int, dtype: jnp.dtype) -> RMSNorm | HeadsNorm | None:
    match config.qk_norm:
        case None | "rotated":
            return None
        case "head":
            return RMSNorm(head_dim, "head_dim", config, dtype)
        case "all":
            return HeadsNorm(heads, head_dim, config, shards, dtype)
