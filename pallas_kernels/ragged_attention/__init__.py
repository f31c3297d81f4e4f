"""Attention of whole sequences over themselves, in both directions: nothing is cached."""

from pallas_kernels.ragged_attention.api import ragged_attention

__all__ = ["ragged_attention"]
