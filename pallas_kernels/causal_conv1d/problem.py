"""What implementations of causal_conv1d are chosen by."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp


class ConvProblem(NamedTuple):
    """A call: its dtype, T tokens, R rows, C channels, W taps."""

    dtype: jnp.dtype
    tokens: int
    rows: int
    channels: int
    width: int
