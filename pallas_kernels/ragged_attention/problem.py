"""What implementations of ragged_attention are chosen by."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from pallas_kernels.ragged_paged_attention import AttentionOptions


class RaggedProblem(NamedTuple):
    """A call: the dtype of all its arrays, and its options."""

    dtype: jnp.dtype
    options: AttentionOptions
