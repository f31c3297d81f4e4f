"""Narrow numbers made bfloat16 in registers: words of 16 bits (words.py) come in, operands of wgmma go out, all exact.

The mantissa of bfloat16 has seven bits: put into that of 128, a number of seven bits is 128 more than itself, so that a
difference of two bfloat16 is all that is left to do. Two words share a register, and so do two results.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

_HUNDRED_AND_28 = 0x4300  # in bfloat16, whose last bit is then worth 1


def int8(words: jax.Array, part: int) -> jax.Array:
    """The signed numbers of the lower half of each word, or of the upper one."""
    bits = words >> jnp.uint16(8) if part else words
    # The sign is worth -128: what is taken away is 128, or 256 of a negative number.
    return _from_128(bits & jnp.uint16(0x7F)) - _from_128(bits & jnp.uint16(0x80))


def _from_128(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits | jnp.uint16(_HUNDRED_AND_28), jnp.bfloat16)
