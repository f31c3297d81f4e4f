"""How far numbers of a cache in 8 bits are from what was written, tiny vectors included (docs/kernels.md has the bounds)."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.kv_write.quantize import largest_number, quantize

SMALLEST_SCALE = 2.0**-14  # of float16


@pytest.mark.parametrize("magnitude", [1e3, 1.0, 1e-2, 0.0077, 1e-4, 1e-6, 1e-30, 0.0])
@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float8_e4m3fn], ids=["int8", "float8"])
def test_numbers_are_as_near_as_the_docs_say(dtype, magnitude):
    vectors = np.float32(magnitude) * np.random.default_rng(7).uniform(-1.0, 1.0, (64, 128)).astype(np.float32)
    numbers, scales = quantize(jnp.asarray(vectors), jnp.dtype(dtype), jnp.dtype(jnp.float16))
    read = np.asarray(numbers, np.float64) * np.asarray(scales, np.float64)[:, None]
    error, scale = np.abs(read - vectors), np.asarray(scales, np.float64)[:, None]
    assert scale.min() >= SMALLEST_SCALE
    if dtype == jnp.int8:
        assert (error <= 0.5001 * scale).all()
    else:
        assert (error <= np.maximum(np.abs(vectors) / 16, scale / 1024) * 1.0001).all()
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    above = largest >= largest_number(jnp.dtype(dtype)) * SMALLEST_SCALE
    if dtype == jnp.int8:
        assert (error <= np.where(above, 1.002 * largest / 254, 2.0**-15)).all()
    else:
        assert (error <= np.where(above, np.inf, np.maximum(np.abs(vectors) / 16, 2.0**-24)) * 1.0001).all()
