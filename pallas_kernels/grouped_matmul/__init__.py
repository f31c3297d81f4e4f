"""Rows sorted by group, each times its group's matrix: the products below mixture-of-experts layers."""

from pallas_kernels.grouped_matmul.api import check_inputs, grouped_matmul, why_not_words
from pallas_kernels.grouped_matmul.implementations import NAMES

__all__ = ["NAMES", "check_inputs", "grouped_matmul", "why_not_words"]
