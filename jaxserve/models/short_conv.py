"""A short convolution between two gates, as LFM2 (Liquid AI 2025) has it in the place of attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig
from jaxserve.models.parameter import COLUMNS, ROWS, Parameter, Projected, declare, project_columns, project_rows
from jaxserve.models.recurrence import Recur
from jaxserve.models.recurrent import ShortConv


class ShortConvMixer(nnx.Module):
    """Projections and gates around a convolution.

    `inputs` [E, s, 3C/s] makes each shard's gates before it and after it, and what they gate; `conv` is [W, s, C/s], and `out`
    [s, C/s, E].
    """

    def __init__(self, config: DecoderConfig, conv: ShortConv, layer: int, shards: int, dtype: jnp.dtype) -> None:
        embed, channels = config.hidden_size, conv.channels // shards
        self.layer = sum(conv.layers[:layer])
        self.inputs = declare((embed, shards, 3 * channels), ("embed", "heads", None), dtype, COLUMNS)
        self.conv = declare((conv.width, shards, channels), (None, "heads", None), dtype)
        self.out = declare((shards, channels, embed), ("heads", None, "embed"), dtype, ROWS)

    @property
    def first(self) -> tuple[Parameter, ...]:
        """The matrices that rows are multiplied by."""
        return (self.inputs,)

    def __call__(self, x: Projected, recur: Recur) -> jax.Array:
        """x[T, E] of normalised activations to [T, E], before the residual sum."""
        before, after, mixed = jnp.split(project_columns(x, self.inputs, None), 3, axis=2)
        mixed = recur.convolve(self.layer, before * mixed, self.conv[...], None, silu=False)
        return project_rows(after * mixed, self.out, None)
