"""A state-space layer of Mamba-2 (Dao and Gu 2024), as Granite 4 has it in the place of attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig
from jaxserve.models.parameter import COLUMNS, GATES, ROWS, Parameter, Projected, declare, project_columns, project_rows
from jaxserve.models.recurrence import Recur
from jaxserve.models.recurrent import Mamba2
from pallas_kernels.gated_linear_attention import LinearOptions

_FLOAT = jnp.dtype(jnp.float32)


class MambaMixer(nnx.Module):
    """Projections, convolution, steps and norm around a state space, which is linear attention without the delta rule.

    `inputs` [E, s, X] makes each shard's gates, then x, B and C; `gates` [E, s, H/s] the size of steps. `conv` is [W, s, C/s],
    `conv_bias` [s, C/s], `decay`, `step_bias` and `skip` f32[s, H/s], `norm` [s, H/s * V], and `out` [s, H/s * V, E]. With fewer
    groups than shards each is repeated for those whose heads read it.
    """

    def __init__(self, config: DecoderConfig, mamba: Mamba2, layer: int, shards: int, dtype: jnp.dtype) -> None:
        embed, heads = config.hidden_size, mamba.heads // shards
        self.layer, self.mamba, self.eps = sum(mamba.layers[:layer]), mamba, config.norm_eps
        self.groups = max(mamba.key_heads, shards)
        values, channels = heads * mamba.value_dim, mamba.held_channels(shards) // shards
        self.inputs = declare((embed, shards, values + channels), ("embed", "heads", None), dtype, COLUMNS)
        self.gates = declare((embed, shards, heads), ("embed", "heads", None), dtype, GATES)
        self.conv = declare((mamba.width, shards, channels), (None, "heads", None), dtype)
        self.conv_bias = declare((shards, channels), ("heads", None), dtype) if mamba.conv_bias else None
        self.decay, self.step_bias, self.skip = (declare((shards, heads), ("heads", None), _FLOAT) for _ in range(3))
        self.norm = declare((shards, values), ("heads", None), dtype)
        self.out = declare((shards, values, embed), ("heads", None, "embed"), dtype, ROWS)

    @property
    def first(self) -> tuple[Parameter, ...]:
        """The matrices that rows are multiplied by."""
        return (self.inputs, self.gates)

    def __call__(self, x: Projected, recur: Recur) -> jax.Array:
        """x[T, E] of normalised activations to [T, E], before the residual sum."""
        mamba, tokens, shards = self.mamba, x.shape[0], self.out.shape[0]
        values, keys = mamba.values // shards, self.groups // shards * mamba.key_dim
        gate, mixed = jnp.split(project_columns(x, self.inputs, None), (values,), axis=2)
        steps = self._steps(project_columns(x, self.gates, None))
        bias = None if self.conv_bias is None else self.conv_bias[...]
        mixed = recur.convolve(self.layer, mixed, self.conv[...], bias, silu=True)
        v, k, q = jnp.split(mixed, (values, values + keys), axis=2)
        v = v.reshape(tokens, mamba.heads, mamba.value_dim)
        decay = -jnp.exp(self.decay[...])[None] * steps
        attended = recur.attend(
            self.layer,
            q.reshape(tokens, self.groups, mamba.key_dim),
            k.reshape(tokens, self.groups, mamba.key_dim),
            v,
            decay.reshape(tokens, mamba.heads),
            steps.reshape(tokens, mamba.heads),
            LinearOptions(delta=False),
        )
        skipped = self.skip[...].reshape(1, mamba.heads, 1) * v.astype(jnp.float32)
        y = (attended.astype(jnp.float32) + skipped).reshape(tokens, shards, values)
        normed = self._normed(y * jax.nn.silu(gate.astype(jnp.float32)))
        return project_rows(normed.astype(x.dtype), self.out, None)

    def _steps(self, projected: jax.Array) -> jax.Array:
        """[T, s, H/s] -> the size of steps, f32."""
        steps = jax.nn.softplus(projected.astype(jnp.float32) + self.step_bias[...][None])
        return jnp.clip(steps, *self.mamba.steps)

    def _normed(self, y: jax.Array) -> jax.Array:
        """f32[T, s, H/s * V] after a norm over the values of each group of heads."""
        groups = y.reshape(y.shape[0], self.mamba.key_heads, -1)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(groups), axis=2, keepdims=True) + self.eps)
        return (groups * inverse).reshape(y.shape) * self.norm[...].astype(jnp.float32)[None]
