"""Stacked matrices in MXFP4 (OCP Microscaling Formats 1.0), as the experts of gpt-oss have them."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxserve.weights.bits import bits
from jaxserve.weights.checkpoint import Block, Bounds, Tensors
from jaxserve.weights.quantized.numbers import FP4, Coded, Factors, unpack
from jaxserve.weights.tensor_error import TensorError
from pallas_kernels.quantization import FourBit, Scheme

BLOCKS_SUFFIX, SCALES_SUFFIX = "_blocks", "_scales"
"""What follows a tensor's name in those of its numbers and of their exponents."""
GROUP = 32
"""Numbers that share an exponent."""
_BYTES = GROUP // 2  # of a group
_CHUNK = 2**18  # stored bytes that are looked up at a time: their places in the table take 8 times as much
_BIAS, _NAN = 127, 255  # of the exponents
_SAFE = 252  # the largest under which all numbers are finite


def _pairs() -> npt.NDArray[np.uint32]:
    """The two bfloat16 that a byte stands for under an exponent, at [256 * exponent + byte], exactly."""
    numbers, byte, exponent = FP4.astype(np.float64), np.arange(256), np.arange(256)
    pairs = np.stack([numbers[byte & 15], numbers[byte >> 4]], axis=-1)
    scales = np.where(exponent == _NAN, np.nan, np.ldexp(1.0, exponent - _BIAS))
    with np.errstate(over="ignore"):  # under the two largest exponents, some numbers are infinite
        return (pairs * scales[:, None, None]).astype(ml_dtypes.bfloat16).view(np.uint32).reshape(-1)


_PAIRS = _pairs()


@dataclass(frozen=True, slots=True)
class MXFP4Stack:
    """The stack of matrices [X, in, out] that blocks [X, out, in / 32, 16] and exponents [X, out, in / 32] stand for.

    A byte has two numbers, the first in its low half.

    Attributes:
        name: of the stack; those of its parts follow from it.
        blocks: shape of the blocks.

    Raises TensorError: blocks of another shape.
    """

    name: str
    blocks: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.blocks) != 4 or self.blocks[3] != _BYTES:
            blocks = f"{self.name}{BLOCKS_SUFFIX}"
            raise TensorError(blocks, f"{blocks} is {list(self.blocks)}, not [X, out, in/32, 16]")

    @property
    def shape(self) -> tuple[int, int, int]:
        """[X, in, out]."""
        experts, outputs, groups, _ = self.blocks
        return (experts, groups * GROUP, outputs)

    @property
    def dtype(self) -> str:
        """Of what is read: bfloat16 holds every number of this format."""
        return "bfloat16"

    @property
    def parts(self) -> frozenset[str]:
        return frozenset({self.name + BLOCKS_SUFFIX, self.name + SCALES_SUFFIX})

    def check_scales(self, shape: tuple[int, ...]) -> None:
        """Raise TensorError unless the exponents are what the blocks need."""
        if shape != self.blocks[:3]:
            scales, blocks = f"{self.name}{SCALES_SUFFIX}", f"{self.name}{BLOCKS_SUFFIX} {list(self.blocks)}"
            raise TensorError(scales, f"{scales} is {list(shape)}, but {blocks} needs {list(self.blocks[:3])}")

    @property
    def scheme(self) -> Scheme:
        """See `CodedTensor`."""
        return FourBit("fp4", GROUP)

    def coded(self, tensors: Tensors, bounds: Bounds) -> Coded:
        """See `CodedTensor`. A factor is not finite where one of its numbers is not in bfloat16."""
        expert, (first, last), outputs = bounds
        left, right = first // GROUP, -(-last // GROUP)
        index = (expert, outputs, (left, right))
        blocks = tensors.read(self.name + BLOCKS_SUFFIX, (*index, (0, _BYTES)))[0]
        exponents = tensors.read(self.name + SCALES_SUFFIX, index)[0]
        codes = unpack(blocks.reshape(len(blocks), -1), 4)
        scales = np.where(exponents == _NAN, np.float32(np.nan), np.ldexp(np.float32(1), exponents.astype(np.int32) - _BIAS))
        if exponents.max(initial=0) > _SAFE:
            numbers = _dequantized(blocks, exponents).view(self.dtype).reshape(*exponents.shape, GROUP)
            scales[~np.isfinite(numbers.astype(np.float32)).all(axis=-1)] = np.nan
        factors = Factors(scales, None, np.arange(len(blocks)), np.arange(first, last) // GROUP - left)
        return Coded(codes[:, first - left * GROUP : last - left * GROUP], FP4, factors)

    def read(self, tensors: Tensors, bounds: Bounds) -> Block:
        """The dequantized block between the bounds."""
        (expert, experts), (first, last), outputs = bounds
        left, right = first // GROUP, -(-last // GROUP)
        cut = slice(first - left * GROUP, last - left * GROUP)
        out = np.empty((experts - expert, outputs[1] - outputs[0], last - first), self.dtype)
        rows = max(1, _CHUNK // ((right - left) * _BYTES))
        for at, matrix in enumerate(out, start=expert):
            index = ((at, at + 1), outputs, (left, right))
            blocks = tensors.read(self.name + BLOCKS_SUFFIX, (*index, (0, _BYTES)))[0]
            scales = tensors.read(self.name + SCALES_SUFFIX, index)[0]
            for row in range(0, len(matrix), rows):
                part = slice(row, row + rows)
                bits(matrix)[part] = _dequantized(blocks[part], scales[part])[:, cut]
        return out.swapaxes(1, 2)


def _dequantized(blocks: Block, scales: Block) -> Block:
    """The bits of bfloat16[rows, in] of blocks[rows, in / 32, 16] and exponents[rows, in / 32]."""
    places = scales[..., None].astype(np.uint16) << 8 | blocks
    pairs: npt.NDArray[np.uint32] = np.take(_PAIRS, places, mode="clip")  # no place is out of bounds; other modes are slower
    numbers: Block = pairs.view(np.uint16).reshape(len(blocks), -1)
    return numbers
