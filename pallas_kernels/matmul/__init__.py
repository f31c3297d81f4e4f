"""Products of activations and weight matrices, which CPUs hold packed."""

from pallas_kernels.matmul.api import matmul, why_plain
from pallas_kernels.matmul.implementations import NAMES
from pallas_kernels.matmul.packed import PackedMatrix

__all__ = ["NAMES", "PackedMatrix", "matmul", "why_plain"]
