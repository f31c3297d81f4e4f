"""The gated MLP (SwiGLU and GeGLU, Shazeer 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig
from jaxserve.models.parameter import (
    COLUMNS,
    ROWS,
    Parameter,
    Projected,
    declare,
    project_columns,
    project_gated,
    project_rows,
    rounding,
)
from jaxserve.models.ungated_mlp import MLP
from pallas_kernels.round_rows import Rounded

CLAMP, SHARPNESS = 7.0, 1.702  # of "swiglu_clamped"


def _silu(gate: jax.Array, up: jax.Array) -> jax.Array:
    return jax.nn.silu(gate) * up


def _gelu(gate: jax.Array, up: jax.Array) -> jax.Array:
    return jax.nn.gelu(gate, approximate=False) * up


def _gelu_tanh(gate: jax.Array, up: jax.Array) -> jax.Array:
    return jax.nn.gelu(gate, approximate=True) * up


def _swiglu_clamped(gate: jax.Array, up: jax.Array) -> jax.Array:
    """OpenAI's in gpt-oss (2025)."""
    gate = jnp.minimum(gate, CLAMP)
    return (jnp.clip(up, -CLAMP, CLAMP) + 1) * (gate * jax.nn.sigmoid(gate * SHARPNESS))


ACTIVATIONS: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = MappingProxyType(
    {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "swiglu_clamped": _swiglu_clamped}
)
"""From gate and up, of one shape, to what the projection down takes, by `DecoderConfig.activation`."""


class GatedMLP(nnx.Module):
    """down(activation(gate(x)) * up(x)).

    `gate_up` [E, s, 2F/s] holds for each shard its gate columns, then its up columns; `down` is [s, F/s, E].
    """

    def __init__(self, config: DecoderConfig, shards: int, dtype: jnp.dtype) -> None:
        embed, local = config.hidden_size, config.ffn_size // shards
        self.activation = config.activation
        self.gate_up = declare((embed, shards, 2 * local), ("embed", "ffn", None), dtype, COLUMNS)
        self.gate_up_bias = declare((shards, 2 * local), ("ffn", None), dtype) if config.mlp_bias else None
        self.down = declare((shards, local, embed), ("ffn", None, "embed"), dtype, ROWS)
        self.down_bias = declare((embed,), ("embed",), dtype) if config.mlp_bias else None

    @property
    def first(self) -> tuple[Parameter, ...]:
        """The matrices that rows are multiplied by."""
        return (self.gate_up,)

    def __call__(self, x: Projected) -> jax.Array:
        """x[T, E] of normalised activations to [T, E], before the residual sum."""
        activation = ACTIVATIONS[self.activation]
        if isinstance(x, Rounded) and self.gate_up_bias is None and rounding((self.down,)) is not None:
            return project_rows(project_gated(x, self.gate_up, activation), self.down, self.down_bias)
        gate, up = jnp.split(project_columns(x, self.gate_up, self.gate_up_bias, rounded=False), 2, axis=-1)
        return project_rows(activation(gate, up).astype(x.dtype), self.down, self.down_bias)


def mlp_of(config: DecoderConfig, shards: int, dtype: jnp.dtype) -> GatedMLP | MLP:
    """An MLP of `ffn_size`, with a gate if the config has them."""
    return GatedMLP(config, shards, dtype) if config.gated else MLP(config, shards, dtype)
