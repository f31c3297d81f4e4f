"""Attention of tokens to some positions of their rows: those that were chosen for each."""

from pallas_kernels.sparse_paged_attention.api import sparse_paged_attention
from pallas_kernels.sparse_paged_attention.implementations import NAMES

__all__ = ["NAMES", "sparse_paged_attention"]
