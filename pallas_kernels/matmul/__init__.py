"""Products of activations and weight matrices: the numbers of a scheme (`pallas_kernels.quantization`) in a layout."""

from pallas_kernels.matmul.api import matmul, why_not_words, why_plain
from pallas_kernels.matmul.division import Division
from pallas_kernels.matmul.implementations import NAMES
from pallas_kernels.matmul.layouts import CodePanels, Layout, OutputsFirst, Panels, Rows
from pallas_kernels.matmul.matrix import Matrix, Weight, as_matrix, counted, pack, packed_shape, skips_padding
from pallas_kernels.matmul.parts import part_of
from pallas_kernels.matmul.words import Words
from pallas_kernels.matmul.xla import unscaled

__all__ = [
    "NAMES",
    "CodePanels",
    "Division",
    "Layout",
    "Matrix",
    "OutputsFirst",
    "Panels",
    "Rows",
    "Weight",
    "Words",
    "as_matrix",
    "counted",
    "matmul",
    "pack",
    "packed_shape",
    "part_of",
    "skips_padding",
    "unscaled",
    "why_not_words",
    "why_plain",
]
