"""A gated delta net (Yang, Kautz and Hatamizadeh 2024), as Qwen3-Next has it in the place of attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig
from jaxserve.models.norm import rms
from jaxserve.models.parameter import COLUMNS, GATES, ROWS, Parameter, Projected, declare, project_columns, project_rows
from jaxserve.models.recurrence import Recur
from jaxserve.models.recurrent import DeltaNet
from pallas_kernels.gated_linear_attention import LinearOptions


class GatedDeltaNet(nnx.Module):
    """Projections, convolution, gates and norm around gated linear attention.

    `inputs` [E, s, (2 K D + 2 H V)/s] makes queries, keys, values and what gates the result of each shard's heads; `gates`
    [E, s, 2H/s] how much a token is written, and how fast states fade. `conv` is [W, s, C/s], `decay` and `decay_bias` f32[s,
    H/s], `norm` [V], and `out` [s, H/s * V, E].
    """

    def __init__(self, config: DecoderConfig, net: DeltaNet, layer: int, shards: int, dtype: jnp.dtype) -> None:
        embed, heads = config.hidden_size, net.heads // shards
        self.layer, self.net, self.eps = sum(net.layers[:layer]), net, config.norm_eps
        values = heads * net.value_dim
        self.inputs = declare((embed, shards, net.channels // shards + values), ("embed", "heads", None), dtype, COLUMNS)
        self.gates = declare((embed, shards, 2 * heads), ("embed", "heads", None), dtype, GATES)
        self.conv = declare((net.width, shards, net.channels // shards), (None, "heads", None), dtype)
        self.decay = declare((shards, heads), ("heads", None), jnp.dtype(jnp.float32))
        self.decay_bias = declare((shards, heads), ("heads", None), jnp.dtype(jnp.float32))
        self.norm = declare((net.value_dim,), (None,), dtype)
        self.out = declare((shards, values, embed), ("heads", None, "embed"), dtype, ROWS)
        self.options = LinearOptions(delta=True, scale=net.key_dim**-0.5, l2_norm=True)

    @property
    def first(self) -> tuple[Parameter, ...]:
        """The matrices that rows are multiplied by."""
        return (self.inputs, self.gates)

    def __call__(self, x: Projected, recur: Recur) -> jax.Array:
        """x[T, E] of normalised activations to [T, E], before the residual sum."""
        net, tokens, shards = self.net, x.shape[0], self.out.shape[0]
        keys, values = net.key_heads // shards * net.key_dim, net.heads // shards * net.value_dim
        mixed, gate = self._inputs(project_columns(x, self.inputs, None))
        beta, fade = self._gates(project_columns(x, self.gates, None).astype(jnp.float32))
        mixed = recur.convolve(self.layer, mixed, self.conv[...], None, silu=True)
        q, k, v = jnp.split(mixed, (keys, 2 * keys), axis=2)
        attended = recur.attend(
            self.layer,
            q.reshape(tokens, net.key_heads, net.key_dim),
            k.reshape(tokens, net.key_heads, net.key_dim),
            v.reshape(tokens, net.heads, net.value_dim),
            self._decay(fade).reshape(tokens, net.heads),
            jax.nn.sigmoid(beta).reshape(tokens, net.heads),
            self.options,
        )
        normed = rms(attended, self.norm[...], self.eps)
        gated = normed.astype(jnp.float32) * jax.nn.silu(gate.astype(jnp.float32)).reshape(attended.shape)
        return project_rows(gated.astype(x.dtype).reshape(tokens, shards, values), self.out, None)

    def _decay(self, fade: jax.Array) -> jax.Array:
        """Fade f32[T, s, H/s] -> logarithms of what is left of a state."""
        return -jnp.exp(self.decay[...])[None] * jax.nn.softplus(fade + self.decay_bias[...][None])

    def _inputs(self, projected: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[T, s, X] -> queries, keys and values of each shard side by side [T, s, C/s], and gates [T, s, H/s * V]."""
        net, (tokens, shards, _) = self.net, projected.shape
        values = net.heads // shards * net.value_dim
        if not net.interleaved:
            mixed, gate = jnp.split(projected, (projected.shape[2] - values,), axis=2)
            return mixed, gate
        group = net.heads // net.key_heads * net.value_dim
        cuts = (net.key_dim, 2 * net.key_dim, 2 * net.key_dim + group)
        parts = jnp.split(projected.reshape(tokens, shards, net.key_heads // shards, -1), cuts, axis=3)
        q, k, v, gate = (part.reshape(tokens, shards, -1) for part in parts)
        return jnp.concatenate([q, k, v], axis=2), gate

    def _gates(self, projected: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[T, s, 2H/s] -> before the sigmoid of how much is written, and before the softplus of fading, [T, s, H/s] each."""
        net, (tokens, shards, width) = self.net, projected.shape
        if not net.interleaved:
            write, fade = jnp.split(projected, 2, axis=2)
            return write, fade
        parts = jnp.split(projected.reshape(tokens, shards, net.key_heads // shards, -1), 2, axis=3)
        write, fade = (part.reshape(tokens, shards, width // 2) for part in parts)
        return write, fade
