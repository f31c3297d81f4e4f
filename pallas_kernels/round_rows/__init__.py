"""Rows rounded to FP8 for the next product, with what makes them: a norm, the gate of an MLP, or nothing."""

from pallas_kernels.round_rows.api import round_gated, round_normed, round_rows
from pallas_kernels.round_rows.e4m3 import LARGEST, SMALLEST_SCALE, VALUES
from pallas_kernels.round_rows.implementations import NAMES
from pallas_kernels.round_rows.problem import Activation, Gate, Norm
from pallas_kernels.round_rows.rounded import Rounded

__all__ = [
    "LARGEST",
    "NAMES",
    "SMALLEST_SCALE",
    "VALUES",
    "Activation",
    "Gate",
    "Norm",
    "Rounded",
    "round_gated",
    "round_normed",
    "round_rows",
]
