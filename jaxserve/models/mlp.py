"""The gated MLP (SwiGLU, Shazeer 2020)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig
from jaxserve.models.parameter import declare, project_columns, project_rows


class GatedMLP(nnx.Module):
    """down(silu(gate(x)) * up(x)).

    `gate_up` [E, s, 2F/s] holds for each shard its gate columns, then its up columns; `down` is [s, F/s, E].
    """

    def __init__(self, config: DecoderConfig, shards: int, dtype: jnp.dtype) -> None:
        embed, local = config.hidden_size, config.ffn_size // shards
        self.gate_up = declare((embed, shards, 2 * local), ("embed", "ffn", None), dtype)
        self.gate_up_bias = declare((shards, 2 * local), ("ffn", None), dtype) if config.mlp_bias else None
        self.down = declare((shards, local, embed), ("ffn", None, "embed"), dtype)
        self.down_bias = declare((embed,), ("embed",), dtype) if config.mlp_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """x[T, E] of normalised activations to [T, E], before the residual sum."""
        gate, up = jnp.split(project_columns(x, self.gate_up, self.gate_up_bias), 2, axis=-1)
        return project_rows(jax.nn.silu(gate) * up, self.down, self.down_bias)
