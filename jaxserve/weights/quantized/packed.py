"""Matrices of whole numbers of 2, 4 or 8 bits, several in a word along the inputs, as compressed-tensors and GPTQ pack them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxserve.weights.checkpoint import Block, Bounds, Tensors
from jaxserve.weights.quantized.numbers import INT8, UNSIGNED, Coded, Factors, Indices, unpack
from jaxserve.weights.quantized.scales import Scales
from jaxserve.weights.tensor_error import TensorError
from pallas_kernels.matmul.layouts import CODES
from pallas_kernels.quantization import FourBit, Int8, Scheme

FOUR, EIGHT, WORD = 4, 8, 32


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix [O, I] of (number - zero) * scale.

    Attributes:
        name: of the stored words.
        shape: [O, I].
        bits: of a number.
        inputs_first: whether words are [I / numbers a word, O], scales [groups, O] and zero points [groups, O / numbers a word]
            (GPTQ); else [O, I / numbers a word], [O, groups] and [O / numbers a word, groups].
        scales: a factor for each output and group of inputs.
        zeros: name of the zero points; None if all are the middle of the numbers.
        zero_offset: added to each stored zero point.
        group_of: name of the group of each input; None if groups follow one another.
        ordered: whether those groups may be in another order.
        logical: name of a tensor that has the shape, too.
        dtype: name of the dtype it is dequantized to.
        parts: see `QuantizedTensor`.
    """

    name: str
    shape: tuple[int, int]
    bits: int
    inputs_first: bool
    scales: Scales
    zeros: str | None
    zero_offset: int
    group_of: str | None
    ordered: bool
    logical: str | None
    dtype: str
    parts: frozenset[str]

    def read(self, tensors: Tensors, bounds: Bounds) -> Block:
        """See `QuantizedTensor`."""
        return self.coded(tensors, bounds).dequantized(self.dtype)

    @property
    def scheme(self) -> Scheme | None:
        """See `CodedTensor`: groups of inputs that follow one another; of 8 bits one, without zero points."""
        outputs, group = self.scales.block
        if self.ordered:
            return None
        if self.bits == EIGHT:
            return Int8() if self.zeros is None and group >= self.shape[1] else None
        fits = self.bits == FOUR and outputs == 1 and group % CODES == 0 and self.shape[1] % group == 0
        return FourBit("int4", group, self.zeros is not None) if fits else None

    def coded(self, tensors: Tensors, bounds: Bounds) -> Coded:
        """See `CodedTensor`."""
        self._check_shape(tensors)
        codes, factors = self._codes(tensors, bounds), self._factors(tensors, bounds)
        if self.bits == EIGHT and self.zeros is None:  # less their middle they are int8
            return Coded(codes ^ np.uint8(128), INT8, factors._replace(zeros=None))
        return Coded(codes, UNSIGNED, factors)

    def _codes(self, tensors: Tensors, bounds: Bounds) -> Block:
        outputs, (left, right) = bounds
        each = WORD // self.bits
        words = (left // each, -(-right // each))
        stored = tensors.read(self.name, (words, outputs) if self.inputs_first else (outputs, words))
        start = left - words[0] * each
        return unpack(stored.T if self.inputs_first else stored, self.bits)[:, start : start + right - left]

    def _factors(self, tensors: Tensors, bounds: Bounds) -> Factors:
        outputs, inputs = bounds
        places = None if self.group_of is None else self._groups(tensors, self.group_of, inputs)
        if places is not None:  # an order of their own: any group may be among them
            inputs = (0, self.shape[1])
        factors = self.scales.read(tensors, (outputs, inputs))
        zeros = self._zero_points(tensors, outputs, inputs, factors.scales)
        return factors._replace(zeros=zeros, columns=factors.columns if places is None else places)

    def _zero_points(self, tensors: Tensors, outputs: tuple[int, int], inputs: tuple[int, int], scales: Block) -> Block:
        if self.zeros is None:
            return np.full_like(scales, 2 ** (self.bits - 1))
        (first, last), each, size = outputs, WORD // self.bits, self.scales.block[1]
        words, groups = (first // each, -(-last // each)), (inputs[0] // size, -(-inputs[1] // size))
        stored = tensors.read(self.zeros, (groups, words) if self.inputs_first else (words, groups))
        points = unpack(stored if self.inputs_first else stored.T, self.bits).T[first - words[0] * each :][: last - first]
        zeros = points.astype(np.float32) + np.float32(self.zero_offset)
        if zeros.max(initial=0) >= 2**self.bits:
            largest = 2**self.bits - 1
            raise TensorError(self.zeros, f"{self.zeros} has zero points over {largest}, the largest of {self.bits} bits")
        return zeros

    def _groups(self, tensors: Tensors, name: str, inputs: tuple[int, int]) -> Indices | None:
        """The group of each input; None where they are not said (-1)."""
        groups: Indices = tensors.read(name, (inputs,)).astype(np.intp)
        if (groups == -1).all():
            return None
        count = -(-self.shape[1] // self.scales.block[1])
        if groups.min(initial=0) < 0 or groups.max(initial=0) >= count:
            raise TensorError(name, f"{name} names groups from {groups.min()} to {groups.max()}, and there are {count}")
        if not self.ordered and (groups != np.arange(*inputs) // self.scales.block[1]).any():
            raise TensorError(name, f"{name} has an order of its own, and desc_act is false")
        return groups

    def _check_shape(self, tensors: Tensors) -> None:
        if self.logical is None:
            return
        said = tuple(int(size) for size in tensors.read(self.logical, ((0, 2),)))
        if said != self.shape:
            raise TensorError(self.logical, f"{self.logical} says {list(said)}, but {self.name} has {list(self.shape)}")
