"""The MLP of two projections, without a gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig
from jaxserve.models.parameter import COLUMNS, ROWS, Parameter, Projected, declare, project_columns, project_rows

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = MappingProxyType(
    {
        "gelu": partial(jax.nn.gelu, approximate=False),
        "gelu_tanh": partial(jax.nn.gelu, approximate=True),
        "relu": jax.nn.relu,
        "relu2": lambda x: jnp.square(jax.nn.relu(x)),  # So et al. 2021
    }
)


class MLP(nnx.Module):
    """down(activation(up(x))); `up` is [E, s, F/s], `down` [s, F/s, E]."""

    def __init__(self, config: DecoderConfig, shards: int, dtype: jnp.dtype) -> None:
        embed, local = config.hidden_size, config.ffn_size // shards
        self.activation = config.activation
        self.up = declare((embed, shards, local), ("embed", "ffn", None), dtype, COLUMNS)
        self.up_bias = declare((shards, local), ("ffn", None), dtype) if config.mlp_bias else None
        self.down = declare((shards, local, embed), ("ffn", None, "embed"), dtype, ROWS)
        self.down_bias = declare((embed,), ("embed",), dtype) if config.mlp_bias else None

    @property
    def first(self) -> tuple[Parameter, ...]:
        """The matrices that rows are multiplied by."""
        return (self.up,)

    def __call__(self, x: Projected) -> jax.Array:
        """x[T, E] to [T, E], before the residual sum."""
        hidden = project_columns(x, self.up, self.up_bias, rounded=False)
        return project_rows(ACTIVATIONS[self.activation](hidden).astype(x.dtype), self.down, self.down_bias)
