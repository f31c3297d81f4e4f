"""Queries and keys turned by their positions, keys and values put into the pages of the cache."""

from pallas_kernels.rotate_and_write.api import rotate_and_write
from pallas_kernels.rotate_and_write.implementations import NAMES
from pallas_kernels.rotate_and_write.rotation import Rotation, packed_heads, rotate

__all__ = ["NAMES", "Rotation", "packed_heads", "rotate", "rotate_and_write"]
