"""The factors of a matrix, a grid of one for each block of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxserve.weights.checkpoint import Block, Bounds, Tensors, whole
from jaxserve.weights.quantized.numbers import Factors
from jaxserve.weights.quantized.stored import Shape, Stored
from jaxserve.weights.tensor_error import TensorError

DTYPES = ("float32", "bfloat16", "float16", "float8_e8m0fnu")
_BIAS, _NAN = 127, 255  # of powers of two in a byte


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors [O / block outputs, I / block inputs], rounded up, of a matrix [O, I].

    Attributes:
        name: of the stored tensor.
        stored: its shape: that grid, its transpose where inputs come first, or one dimension or none where that is all.
        matrix: [O, I].
        block: outputs and inputs that share a factor.
        inputs_first: whether the stored grid is [inputs, outputs].
        zeros: whether a factor of 0 is one: groups whose scale is in FP8 may be too small for it.
    """

    name: str
    stored: Shape
    matrix: tuple[int, int]
    block: tuple[int, int]
    inputs_first: bool = False
    zeros: bool = False

    @staticmethod
    def of(
        stored: Stored,
        name: str,
        owner: str,
        matrix: tuple[int, int],
        block: tuple[int | None, int | None],
        dtypes: tuple[str, ...] = DTYPES,
        inputs_first: bool = False,
    ) -> Scales:
        """The factors of the tensor `owner`. Raises TensorError unless they are what it needs."""
        outputs, inputs = block[0] or matrix[0], block[1] or matrix[1]
        grid = (-(-matrix[0] // outputs), -(-matrix[1] // inputs))
        shapes: tuple[Shape, ...] = (grid[::-1] if inputs_first else grid,)
        if grid[1] == 1:
            shapes += ((grid[0],),)
        if grid == (1, 1):
            shapes += ((),)
        whose = f"{owner} {list(matrix)} in blocks of {[outputs, inputs]}"
        stored.require(name, owner)
        stored.require_like(name, whose, shapes, dtypes)
        zeros = stored.dtypes[name] == "float8_e4m3fn"
        return Scales(name, stored.shapes[name], matrix, (outputs, inputs), inputs_first, zeros)

    def read(self, tensors: Tensors, bounds: Bounds) -> Factors:
        """Those of a block of the matrix, without zero points. Raises TensorError for one that is not finite, or 0."""
        groups = self._groups(bounds)
        scales = _numbers(self.grid(tensors, self.name, bounds))
        self._check(scales, groups)
        rows, columns = (
            np.arange(*pair) // size - group[0] for pair, size, group in zip(bounds, self.block, groups, strict=True)
        )
        return Factors(scales, None, rows, columns)

    def grid(self, tensors: Tensors, name: str, bounds: Bounds) -> Block:
        """The part [groups of O, groups of I] of a tensor in the same grid that belongs to a block of the matrix."""
        groups = self._groups(bounds)
        if len(self.stored) < 2:
            return tensors.read(name, whole(self.stored)).reshape(-1, 1)[slice(*groups[0])]
        read = tensors.read(name, groups[::-1] if self.inputs_first else groups)
        return read.T if self.inputs_first else read

    def _groups(self, bounds: Bounds) -> Bounds:
        return tuple((first // size, -(-last // size)) for (first, last), size in zip(bounds, self.block, strict=True))

    def _check(self, scales: Block, groups: Bounds) -> None:
        wrong = ~np.isfinite(scales) if self.zeros else ~np.isfinite(scales) | (scales == 0)
        if wrong.any():
            place = [int(at) + start for at, (start, _) in zip(np.argwhere(wrong)[0], groups, strict=True)]
            value = float(scales[wrong][0])
            found = f"{int(wrong.sum())} factors that are NaN, infinite or 0, the first for block {place}: {value:g}"
            raise TensorError(self.name, f"{self.name} has {found}")


def _numbers(grid: Block) -> Block:
    """In float32; bytes are powers of two."""
    if grid.dtype != np.uint8:
        return np.asarray(grid, np.float32)
    return np.where(grid == _NAN, np.float32(np.nan), np.ldexp(np.float32(1), grid.astype(np.int32) - _BIAS))
