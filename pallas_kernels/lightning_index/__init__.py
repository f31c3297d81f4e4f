"""Which cached tokens a query attends to: the lightning indexer of DeepSeek Sparse Attention."""

from pallas_kernels.lightning_index.api import lightning_index
from pallas_kernels.lightning_index.implementations import NAMES
from pallas_kernels.lightning_index.problem import IndexOptions

__all__ = ["NAMES", "IndexOptions", "lightning_index"]
