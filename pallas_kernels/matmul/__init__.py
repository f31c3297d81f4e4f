"""Products of activations and weight matrices: the numbers of a scheme (`pallas_kernels.quantization`) in a layout."""

from pallas_kernels.matmul.api import matmul, why_plain
from pallas_kernels.matmul.implementations import NAMES
from pallas_kernels.matmul.layouts import CodePanels, Layout, OutputsFirst, Panels, Rows
from pallas_kernels.matmul.matrix import Matrix, Weight, as_matrix, counted, pack, packed_shape, skips_padding

__all__ = [
    "NAMES",
    "CodePanels",
    "Layout",
    "Matrix",
    "OutputsFirst",
    "Panels",
    "Rows",
    "Weight",
    "as_matrix",
    "counted",
    "matmul",
    "pack",
    "packed_shape",
    "skips_padding",
    "why_plain",
]
