"""Gumbel noise that is a function of key, position and token, so that a device makes that of its own tokens alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry2x32_p

from jaxserve.sampling.vocabulary import Vocabulary

MANTISSA_BITS = 23
ONE = int(np.float32(1).view(np.uint32))
TINY = np.finfo(np.float32).tiny


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
    token = (vocabulary.first(columns) + lax.iota(jnp.int32, columns)).astype(jnp.uint32)
    high = jnp.zeros_like(token)  # of the 64-bit index

    def row(key: jax.Array, position: jax.Array) -> jax.Array:
        wrapped = jax.random.wrap_key_data(key, impl="threefry2x32")
        folded = jax.random.key_data(jax.random.fold_in(wrapped, position))
        first, second = threefry2x32_p.bind(folded[0], folded[1], high, token)
        return jnp.asarray(first ^ second)

    bits = jax.vmap(row)(key, position)
    # The top bits become the mantissa of a float in [1, 2).
    unit = lax.bitcast_convert_type((bits >> (32 - MANTISSA_BITS)) | jnp.uint32(ONE), jnp.float32) - 1.0
    return -jnp.log(-jnp.log(jnp.maximum(unit, TINY)))
