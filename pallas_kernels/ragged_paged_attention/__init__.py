"""Attention of a ragged batch, prefill chunks and decodes mixed, over a paged key-value cache."""

from pallas_kernels.ragged_paged_attention.api import check_inputs, ragged_paged_attention
from pallas_kernels.ragged_paged_attention.implementations import NAMES

__all__ = ["NAMES", "check_inputs", "ragged_paged_attention"]
