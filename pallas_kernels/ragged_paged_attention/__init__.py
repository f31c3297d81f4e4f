"""Attention of a ragged batch, prefill chunks and decodes mixed, over a paged key-value cache."""

from pallas_kernels.ragged_paged_attention.api import check_inputs, ragged_paged_attention
from pallas_kernels.ragged_paged_attention.implementations import NAMES, UNSPLIT
from pallas_kernels.ragged_paged_attention.options import AttentionOptions

__all__ = ["NAMES", "UNSPLIT", "AttentionOptions", "check_inputs", "ragged_paged_attention"]
