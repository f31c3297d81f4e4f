"""Matrices of 4-bit floats, two a byte along the inputs, with a factor for a group of inputs: NVFP4 and MXFP4."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxserve.weights.checkpoint import Block, Bounds, Tensors, whole
from jaxserve.weights.quantized.numbers import FP4, Coded, unpack
from jaxserve.weights.quantized.scales import Scales
from jaxserve.weights.quantized.stored import Shape
from jaxserve.weights.tensor_error import TensorError
from pallas_kernels.quantization import FourBit, Scheme


@dataclass(frozen=True, slots=True)
class GlobalScale:
    """A factor of a whole matrix.

    Attributes:
        name: of the stored tensor, of one number.
        stored: its shape.
        divides: whether it divides (compressed-tensors) or multiplies (ModelOpt).
    """

    name: str
    stored: Shape
    divides: bool

    def read(self, tensors: Tensors) -> np.float32:
        """What multiplies."""
        value = np.float32(tensors.read(self.name, whole(self.stored)).astype(np.float32).reshape(-1)[0])
        if not np.isfinite(value) or value == 0:
            raise TensorError(self.name, f"{self.name} is {value:g}: no factor")
        return np.float32(1) / value if self.divides else value


@dataclass(frozen=True, slots=True)
class Float4Matrix:
    """A matrix [O, I] stored as bytes [O, I / 2], the first number of a byte in its low half.

    Attributes:
        name: of the bytes.
        shape: [O, I].
        scales: [O, groups of I].
        scale: of the whole matrix, None for none.
        dtype: name of the dtype it is dequantized to.
        parts: see `QuantizedTensor`.
    """

    name: str
    shape: tuple[int, int]
    scales: Scales
    scale: GlobalScale | None
    dtype: str
    parts: frozenset[str]

    def read(self, tensors: Tensors, bounds: Bounds) -> Block:
        """See `QuantizedTensor`."""
        return self.coded(tensors, bounds).dequantized(self.dtype)

    @property
    def scheme(self) -> Scheme | None:
        """See `CodedTensor`."""
        group = self.scales.block[1]
        return FourBit("fp4", group) if self.shape[1] % group == 0 else None

    def coded(self, tensors: Tensors, bounds: Bounds) -> Coded:
        """See `CodedTensor`."""
        outputs, (left, right) = bounds
        stored = tensors.read(self.name, (outputs, (left // 2, -(-right // 2))))
        factors = self.scales.read(tensors, bounds)
        if self.scale is not None:
            factors = factors._replace(scales=factors.scales * self.scale.read(tensors))
        return Coded(unpack(stored, 4)[:, left % 2 :][:, : right - left], FP4, factors)
