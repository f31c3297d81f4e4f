"""New keys and values into the pages of the cache."""

from pallas_kernels.kv_write.api import check_inputs, kv_write

__all__ = ["check_inputs", "kv_write"]
