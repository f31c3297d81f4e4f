"""Gumbel noise that is a function of key, position and token, so that a device makes that of its own tokens alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxserve.sampling.vocabulary import Vocabulary

MANTISSA_BITS = 23
ONE = int(np.float32(1).view(np.uint32))
TINY = np.finfo(np.float32).tiny

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_GROUPS = 5  # of four rounds


def gumbel_noise(key: jax.Array, position: jax.Array, columns: int, vocabulary: Vocabulary) -> jax.Array:
    """Standard Gumbel noise of every row and column.

    The values are those of `jax.random.gumbel(fold_in(key, position), (V,))` with jax's partitionable threefry, whose bits
    at an index are a hash of the index: here any stretch of indices can be drawn without the others.

    Args:
        key: uint32 [R, 2], raw threefry keys.
        position: int32 [R].
        columns: C, columns of this device.
        vocabulary: which tokens they are.

    Returns:
        f32 [R, C].
    """
    token = (vocabulary.first(columns) + lax.broadcasted_iota(jnp.int32, (1, columns), 1)).astype(jnp.uint32)
    zero = jnp.uint32(0)  # the high half of 64-bit positions and indices
    folded = threefry2x32((key[:, :1], key[:, 1:]), (zero, position[:, None].astype(jnp.uint32)))
    first, second = threefry2x32(folded, (zero, token))
    # The top bits become the mantissa of a float in [1, 2).
    unit = lax.bitcast_convert_type(((first ^ second) >> (32 - MANTISSA_BITS)) | jnp.uint32(ONE), jnp.float32) - 1.0
    return -jnp.log(-jnp.log(jnp.maximum(unit, TINY)))


def threefry2x32(key: tuple[jax.Array, jax.Array], count: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011): uint32, any shapes.

    jax's own is a loop on CPUs, which passes over its arrays five times and takes longer to compile than all of this.
    """
    schedule = (*key, key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    first, second = count[0] + key[0], count[1] + key[1]
    for group in range(_GROUPS):
        for rotation in _ROTATIONS[group % 2]:
            first = first + second
            second = first ^ ((second << jnp.uint32(rotation)) | (second >> jnp.uint32(32 - rotation)))
        first = first + schedule[(group + 1) % 3]
        second = second + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return first, second
