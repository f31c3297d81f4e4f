"""New keys and values into the pages of the cache."""

from pallas_kernels.kv_write.api import check_inputs, kv_write
from pallas_kernels.kv_write.implementations import NAMES

__all__ = ["NAMES", "check_inputs", "kv_write"]
