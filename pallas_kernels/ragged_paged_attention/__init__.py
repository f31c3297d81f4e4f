"""Attention of a ragged batch, prefill chunks and decodes mixed, over a paged key-value cache."""

from pallas_kernels.ragged_paged_attention.api import check_inputs, ragged_paged_attention

__all__ = ["check_inputs", "ragged_paged_attention"]
