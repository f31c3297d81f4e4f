"""Matrices of float8_e4m3fn or int8, a byte a number, with factors for blocks, outputs or all of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxserve.weights.checkpoint import Block, Bounds, Tensors
from jaxserve.weights.quantized.numbers import FP8, INT8, Coded
from jaxserve.weights.quantized.scales import Scales
from pallas_kernels.quantization import Float8Blocks, Int8, Scheme
from pallas_kernels.quantization.float8_blocks import GROUP


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
        """See `CodedTensor`: int8 without zero points, with a factor for all inputs of an output; FP8 with one for 128."""
        if self.stored == "float8_e4m3fn" and self.scales.block[1] == GROUP and self.shape[1] % GROUP == 0:
            return Float8Blocks()
        fits = self.stored == "int8" and self.zeros is None and self.scales.block[1] >= self.shape[1]
        return Int8() if fits else None

    def coded(self, tensors: Tensors, bounds: Bounds) -> Coded:
        """See `CodedTensor`."""
        factors = self.scales.read(tensors, bounds)
        if self.zeros is not None:
            factors = factors._replace(zeros=self.scales.grid(tensors, self.zeros, bounds).astype(np.float32))
        codes = np.ascontiguousarray(tensors.read(self.name, bounds)).view(np.uint8)
        return Coded(codes, FP8 if self.stored == "float8_e4m3fn" else INT8, factors)
