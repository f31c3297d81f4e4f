"""What implementations of causal_conv1d are chosen by."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """A call; axes as in api.py.

    Attributes:
        dtype: of everything.
        tokens, rows, channels: T, R, C.
        destinations: places that the states of a row's last tokens go to: W of StateRows.
        width: W, the taps.
    """

    dtype: jnp.dtype
    tokens: int
    rows: int
    destinations: int
    channels: int
    width: int
