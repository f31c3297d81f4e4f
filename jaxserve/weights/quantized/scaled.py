"""Matrices of float8_e4m3fn or int8, a byte a number, with factors for blocks, outputs or all of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxserve.weights.checkpoint import Block, Bounds, Tensors
from jaxserve.weights.quantized.numbers import FP8, INT8, Coded
from jaxserve.weights.quantized.scales import Scales
from pallas_kernels.quantization import FP8 as FP8_SCHEME
from pallas_kernels.quantization import FP8Blocks, Int8, Scheme


@dataclass(frozen=True, slots=True)
class ScaledMatrix:
    """A matrix [O, I] whose numbers are stored under its own name.

    Attributes:
        name: of the matrix.
        shape: [O, I].
        stored: dtype of the numbers, float8_e4m3fn or int8.
        scales: its factors.
        zeros: its zero points in the same grid, None for none.
        dtype: name of the dtype it is dequantized to.
        parts: see `QuantizedTensor`.
    """

    name: str
    shape: tuple[int, int]
    stored: str
    scales: Scales
    dtype: str
    parts: frozenset[str]
    zeros: str | None = None

    def read(self, tensors: Tensors, bounds: Bounds) -> Block:
        """See `QuantizedTensor`."""
        return self.coded(tensors, bounds).dequantized(self.dtype)

    @property
    def scheme(self) -> Scheme | None:
        """See `CodedTensor`: without zero points, with a factor for all inputs of an output, or of FP8 for blocks."""
        if self.zeros is not None:
            return None
        if self.scales.block[1] < self.shape[1]:
            return FP8Blocks(self.scales.block[1]) if self.stored != "int8" and self.scales.block[0] > 1 else None
        return Int8() if self.stored == "int8" else FP8_SCHEME()

    def coded(self, tensors: Tensors, bounds: Bounds) -> Coded:
        """See `CodedTensor`."""
        factors = self.scales.read(tensors, bounds)
        if self.zeros is not None:
            factors = factors._replace(zeros=self.scales.grid(tensors, self.zeros, bounds).astype(np.float32))
        codes = np.ascontiguousarray(tensors.read(self.name, bounds)).view(np.uint8)
        return Coded(codes, FP8 if self.stored == "float8_e4m3fn" else INT8, factors)
