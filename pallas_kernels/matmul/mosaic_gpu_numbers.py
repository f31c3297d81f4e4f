"""Narrow numbers made bfloat16 in registers: words of 16 bits (words.py) come in, operands of wgmma go out, all exact.

The mantissa of bfloat16 has seven bits: put into that of 128, a number of seven bits is 128 more than itself, so that a
difference of two bfloat16 is all that is left to do. Two words share a register, and so do two results.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.matmul.words import BLOCK_INPUTS, WORD_BITS
from pallas_kernels.quantization import Float8Weight, FourBit, Scheme
from pallas_kernels.quantization.four_bit import MIDDLE

_HUNDRED_AND_28 = 0x4300  # in bfloat16, whose last bit is then worth 1


@dataclass(frozen=True)
class Numbers:
    """What the numbers of a matrix are; static arguments of the kernel.

    Attributes:
        bits: 8 of int8 or float8_e4m3fn, or 4 of whole numbers that are counted from their middle, or of E2M1.
        group: inputs that share a factor, 32, 64 or a multiple of 128; None where all do.
        zeros: whether a group has a whole number that is taken away from its numbers.
        floats: whether they are float8, or E2M1.
    """

    bits: int
    group: int | None = None
    zeros: bool = False
    floats: bool = False

    @classmethod
    def of(cls, scheme: Scheme) -> Numbers:
        if isinstance(scheme, Float8Weight):
            return cls(8, scheme.group, floats=True)
        return cls(4, scheme.group, scheme.zeros, scheme.numbers == "fp4") if isinstance(scheme, FourBit) else cls(8)

    @property
    def parts(self) -> int:
        """Of a block of 128 inputs, whose numbers share words."""
        return WORD_BITS // self.bits

    @property
    def part_inputs(self) -> int:
        """Of a part; a block has as many words."""
        return BLOCK_INPUTS // self.parts

    @property
    def factors(self) -> int:
        """Of a block of 128 inputs."""
        return 1 if self.group is None else max(BLOCK_INPUTS // self.group, 1)

    def groups_before(self, inputs: jax.Array) -> jax.Array:
        """Groups that inputs before a block's first one are; 0 where there are none."""
        return jnp.int32(0) if self.group is None else lax.div(inputs, jnp.int32(self.group))

    def widened(self, words: jax.Array, part: int, zeros: jax.Array | None) -> jax.Array:
        """A part's numbers in words [64, J], less what is taken away from those of each of the 64 outputs."""
        if self.floats:
            return _float8(words, part) if self.bits == 8 else _float4(words, part)
        bits = words >> jnp.uint16(part * self.bits) if part else words
        if self.bits == 8:
            # The sign is worth -128: what is taken away is 128, or 256 of a negative number.
            return _from_128(bits & jnp.uint16(0x7F)) - _from_128(bits & jnp.uint16(0x80))
        numbers = _from_128(bits & jnp.uint16(0xF))
        taken: jax.Array = jnp.bfloat16(128 + MIDDLE)
        if zeros is not None:
            taken = lax.broadcast_in_dim((zeros + (128 + MIDDLE)).astype(jnp.bfloat16), numbers.shape, [0])
        return numbers - taken


def _float8(words: jax.Array, part: int) -> jax.Array:
    """E4M3: 120 is added to the exponent."""
    first, others = (words, words >> jnp.uint16(4)) if part else (words << jnp.uint16(8), words << jnp.uint16(4))
    return _float(first, others & jnp.uint16(0x07F0), 120)


def _float4(words: jax.Array, part: int) -> jax.Array:
    """E2M1: 126 is added to the exponent."""
    first = words << jnp.uint16(12 - 4 * part) if part < 3 else words
    others = words << jnp.uint16(6 - 4 * part) if part < 2 else words >> jnp.uint16(4 * part - 6)
    return _float(first, others & jnp.uint16(0x01C0), 126)


def _float(sign: jax.Array, rest: jax.Array, added: int) -> jax.Array:
    """The same bits in bfloat16, with something added to the exponent: right, unless the exponent is 0.

    Then the first bit of the mantissa is not there: twice as much less the smallest number that has it is meant, which is more
    than the number where that is right, and less where not. Nothing between is denormal.
    """
    number = lax.bitcast_convert_type(rest + jnp.uint16(added << 7), jnp.bfloat16)
    size = jnp.minimum(number, number * jnp.bfloat16(2) - jnp.bfloat16(2.0 ** (added - 126)))
    return lax.bitcast_convert_type(lax.bitcast_convert_type(size, jnp.uint16) | sign & jnp.uint16(0x8000), jnp.bfloat16)


def _from_128(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits | jnp.uint16(_HUNDRED_AND_28), jnp.bfloat16)
