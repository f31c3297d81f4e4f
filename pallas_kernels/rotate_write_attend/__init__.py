"""Queries and keys turned by their positions, keys and values put into the cache, and attention over it, at once."""

from pallas_kernels.rotate_write_attend.api import rotate_write_attend
from pallas_kernels.rotate_write_attend.implementations import NAMES

__all__ = ["NAMES", "rotate_write_attend"]
