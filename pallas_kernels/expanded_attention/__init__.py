"""Attention to keys and values of every head, made of a paged cache of latents."""

from pallas_kernels.expanded_attention.api import expanded_attention
from pallas_kernels.expanded_attention.workspace import head_dim, pages_needed

__all__ = ["expanded_attention", "head_dim", "pages_needed"]
