"""Words of 16 bits: how narrow numbers lie for kernels whose registers take a matrix apart by shifts.

128 inputs are a block, in which the outputs lie one behind the other: what a kernel loads at once is one piece of memory. An
output's numbers of `bits` bits are 8 * bits words of a block; word j has number j of each part of the block, the first part's in
its lowest bits. So a register of words is a register of each part's numbers, in the same places, and none moves between threads.
What the last block has more than the inputs is zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pallas_kernels.matmul.division import Division
from pallas_kernels.matmul.layouts import Layout
from pallas_kernels.quantization import Axes, FourBit, Scheme

WORD_BITS = 16
BLOCK_INPUTS = 128  # one step of a kernel


@dataclass(frozen=True, slots=True)
class Words(Layout):
    """Values uint16[inputs / 128, outputs, bits * 8]; see above. Kernels for Hopper read it.

    Attributes:
        shape: of the parameter, whose first dimensions are inputs.
        dtype: of the values, by name.
        bits: that a value takes.
        division: of the parameter over several devices, each of which has whole blocks; None where one has all of it.
    """

    shape: tuple[int, ...]
    dtype: str
    bits: int
    division: Division | None = None
    name: ClassVar[str] = "words"

    @classmethod
    def of(cls, inputs: Axes, shape: tuple[int, ...], scheme: Scheme, division: Division | None = None) -> Words:
        """Of a parameter whose numbers have a scheme that rounds."""
        dtype = scheme.value_dtype(jnp.dtype(jnp.bfloat16))
        return cls(inputs, shape, dtype.name, 4 if isinstance(scheme, FourBit) else 8, division)

    @property
    def _matrix(self) -> tuple[int, int]:
        """Inputs and outputs."""
        split = len(self.inputs)
        return prod(self.shape[:split]), prod(self.shape[split:])

    def arranged_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        inputs, outputs = self._matrix
        return -(-inputs // BLOCK_INPUTS), outputs, BLOCK_INPUTS * self.bits // WORD_BITS

    def restored_shape(self, arranged: tuple[int, ...]) -> tuple[int, ...]:
        return self.shape

    def arranged_dtype(self, dtype: jnp.dtype) -> jnp.dtype:
        return jnp.dtype("uint16")

    def arranged_spec(self, spec: PartitionSpec) -> PartitionSpec:
        return PartitionSpec(spec[0], spec[len(self.inputs)], None)  # type: ignore[no-untyped-call]

    def arrange(self, values: jax.Array) -> jax.Array:
        arranged: jax.Array = _arrange(values.reshape(self._matrix), self.bits)
        return arranged

    def restore(self, values: jax.Array) -> jax.Array:
        inputs, outputs = self._matrix
        parts = values[:, :, None] >> _places(self.bits) & (1 << self.bits) - 1
        codes = parts.astype(jnp.uint8).reshape(-1, outputs, BLOCK_INPUTS).transpose(0, 2, 1).reshape(-1, outputs)
        return jax.lax.bitcast_convert_type(codes[:inputs], jnp.dtype(self.dtype)).reshape(self.shape)


def words_of(rows: np.ndarray, bits: int) -> np.ndarray:
    """The words [inputs / 128, R, bits * 8] of outputs' values [R, inputs], on the host."""
    codes = np.pad(rows.view(np.uint8), ((0, 0), (0, -rows.shape[1] % BLOCK_INPUTS)))
    parts = codes.reshape(len(rows), -1, WORD_BITS // bits, BLOCK_INPUTS * bits // WORD_BITS)
    places = np.arange(0, WORD_BITS, bits, dtype=np.uint16)[:, None]
    words: np.ndarray = np.bitwise_or.reduce(parts.astype(np.uint16) << places, axis=2).transpose(1, 0, 2)
    return words


@partial(jax.jit, static_argnames="bits")
def _arrange(matrix: jax.Array, bits: int) -> jax.Array:
    inputs, outputs = matrix.shape
    codes = jax.lax.bitcast_convert_type(matrix, jnp.uint8).astype(jnp.uint16)
    codes = jnp.pad(codes, ((0, -inputs % BLOCK_INPUTS), (0, 0)))
    blocks = codes.reshape(-1, BLOCK_INPUTS, outputs).transpose(0, 2, 1)
    parts = blocks.reshape(*blocks.shape[:2], WORD_BITS // bits, -1)
    return jnp.bitwise_or.reduce(parts << _places(bits), axis=2)


def _places(bits: int) -> jax.Array:
    """Where the numbers of a word begin, [1, 1, parts, 1]."""
    return jnp.arange(0, WORD_BITS, bits, dtype=jnp.uint16)[None, None, :, None]
