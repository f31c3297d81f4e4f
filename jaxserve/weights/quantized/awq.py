"""Matrices of 4-bit whole numbers, eight outputs in a word in an order of its own, as AWQ's kernels (GEMM) take them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxserve.weights.checkpoint import Block, Bounds, Tensors
from jaxserve.weights.quantized.numbers import UNSIGNED, Coded, unpack
from jaxserve.weights.quantized.scales import Scales
from pallas_kernels.matmul.layouts import CODES
from pallas_kernels.quantization import FourBit, Scheme

BITS = 4
EACH = 8  # outputs in a word
_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # which number of a word, counted from the lowest bits, each of its outputs is


@dataclass(frozen=True, slots=True)
class AWQMatrix:
    """A matrix [O, I] of (number - zero) * scale.

    Attributes:
        name: of the stored words [I, O / 8].
        shape: [O, I].
        scales: [groups, O].
        zeros: name of the zero points, words [groups, O / 8].
        dtype: name of the dtype it is dequantized to.
        parts: see `QuantizedTensor`.
    """

    name: str
    shape: tuple[int, int]
    scales: Scales
    zeros: str
    dtype: str
    parts: frozenset[str]

    def read(self, tensors: Tensors, bounds: Bounds) -> Block:
        """See `QuantizedTensor`."""
        return self.coded(tensors, bounds).dequantized(self.dtype)

    @property
    def scheme(self) -> Scheme | None:
        """See `CodedTensor`."""
        group = self.scales.block[1]
        return FourBit("int4", group, zeros=True) if group % CODES == 0 and self.shape[1] % group == 0 else None

    def coded(self, tensors: Tensors, bounds: Bounds) -> Coded:
        """See `CodedTensor`."""
        outputs, (left, right) = bounds
        size = self.scales.block[1]
        zeros = self._numbers(tensors, self.zeros, (left // size, -(-right // size)), outputs).astype(np.float32)
        codes = self._numbers(tensors, self.name, (left, right), outputs)
        return Coded(codes, UNSIGNED, self.scales.read(tensors, bounds)._replace(zeros=zeros))

    @staticmethod
    def _numbers(tensors: Tensors, name: str, rows: tuple[int, int], outputs: tuple[int, int]) -> Block:
        """Those of some stored rows and outputs, [outputs, rows]."""
        first, last = outputs[0] // EACH, -(-outputs[1] // EACH)
        numbers = unpack(tensors.read(name, (rows, (first, last))), BITS)
        in_order = numbers.reshape(len(numbers), -1, EACH)[..., _PLACES].reshape(len(numbers), -1)
        start = outputs[0] - first * EACH
        return in_order[:, start : start + outputs[1] - outputs[0]].T
