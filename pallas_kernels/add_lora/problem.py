"""What implementations of add_lora are chosen by."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp


class LoraProblem(NamedTuple):
    """A call: the dtype of rows and matrices, and how many slots there are."""

    dtype: jnp.dtype
    slots: int
