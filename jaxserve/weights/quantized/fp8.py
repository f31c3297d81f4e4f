"""Matrices of float8_e4m3fn with a factor for every block, as DeepSeek-V3 and the FP8 checkpoints of Qwen3 have them."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from jaxserve.errors import CheckpointError
from jaxserve.weights.bits import bits, convert
from jaxserve.weights.checkpoint import Block, Bounds, Tensors

SCALE_SUFFIX = "_scale_inv"
"""What follows a tensor's name in that of its factors. They multiply, whatever the name says."""
SCALE_DTYPES = ("float32", "bfloat16", "float16", "float8_e8m0fnu")
_VALUES = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)  # 4 times faster than astype


@dataclass(frozen=True, slots=True)
class BlockFP8Matrix:
    """The matrix that one of float8_e4m3fn [R, C] and its factors [R / block rows, C / block columns], rounded up, stand for.

    Attributes:
        name: of the matrix; that of its factors follows from it.
        shape: [R, C].
        block: rows and columns that share a factor.
        dtype: name of the dtype it is dequantized to.

    Raises CheckpointError: not a matrix.
    """

    name: str
    shape: tuple[int, ...]
    block: tuple[int, int]
    dtype: str

    def __post_init__(self) -> None:
        if len(self.shape) != 2:
            raise CheckpointError(f"{self.name} in FP8 is {list(self.shape)}, not a matrix", param="model")

    def check_scales(self, shape: tuple[int, ...], dtype: str) -> None:
        """Raise CheckpointError unless the factors are what the matrix needs."""
        name, needed = (
            self.name + SCALE_SUFFIX,
            tuple(-(-size // part) for size, part in zip(self.shape, self.block, strict=True)),
        )
        if shape != needed:
            raise CheckpointError(
                f"{name} is {list(shape)}, but {self.name} {list(self.shape)} in blocks of {list(self.block)} "
                f"needs {list(needed)}",
                param="model",
            )
        if dtype not in SCALE_DTYPES:
            raise CheckpointError(f"{name} is {dtype}; read are {', '.join(SCALE_DTYPES)}", param="model")

    def read(self, tensors: Tensors, bounds: Bounds) -> Block:
        """The dequantized block between the bounds; only a block's rows at a time are ever in float32."""
        (first, last), (left, right) = bounds
        rows, columns = self.block
        above, before = first // rows, left // columns
        stored = tensors.read(self.name, bounds).view(np.uint8)
        factors = tensors.read(self.name + SCALE_SUFFIX, ((above, -(-last // rows)), (before, -(-right // columns))))
        column_blocks = np.arange(left, right) // columns - before
        out = np.empty(stored.shape, self.dtype)
        for at, factor in enumerate(factors.astype(np.float32), start=above):
            part = slice(max(first, at * rows) - first, min(last, (at + 1) * rows) - first)
            numbers: Block = np.take(_VALUES, stored[part], mode="clip") * factor[column_blocks]
            bits(out)[part] = bits(convert(numbers, out.dtype))
        return out
