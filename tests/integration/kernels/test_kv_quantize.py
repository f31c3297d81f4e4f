"""What rounding keys and values to 8 bits may change, whatever their size: nothing is too small or too large for its scale."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.executor.cache_arrays import SCALES_DTYPE
from pallas_kernels.kv_write.quantize import largest_number, quantize

INT8, FLOAT8 = jnp.dtype(jnp.int8), jnp.dtype(jnp.float8_e4m3fn)
MAGNITUDES = (1e-30, 1e-20, 1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e9, 1e20, 1e36)


def read(vectors: np.ndarray, dtype: np.dtype, scale_dtype: str = SCALES_DTYPE) -> np.ndarray:
    numbers, scales = (np.asarray(array) for array in quantize(jnp.asarray(vectors), dtype, jnp.dtype(scale_dtype)))
    return numbers.astype(np.float64) * scales.astype(np.float64)[..., None]


def some_vectors(magnitude: float) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal((300, 64)) * magnitude).astype(np.float32)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_int8_is_off_by_a_253rd_of_the_largest_at_most(magnitude):
    """1/254 for a scale that is not rounded, and 1 + 2^-8 times as much for one that is rounded up to bfloat16."""
    vectors = some_vectors(magnitude)
    largest = np.abs(vectors).max(axis=-1, keepdims=True).astype(np.float64)
    assert (np.abs(read(vectors, INT8) - vectors) <= largest * (1.001 / 253)).all()


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_float8_is_off_by_a_16th_of_itself_at_most(magnitude):
    """Or, of what is small beside the largest, by half of the smallest number times the scale."""
    vectors = some_vectors(magnitude)
    largest = np.abs(vectors).max(axis=-1, keepdims=True).astype(np.float64)
    bound = np.maximum(np.abs(vectors) / 16, largest * (1.004 / 448 / 1024))
    assert (np.abs(read(vectors, FLOAT8) - vectors) <= bound * 1.001).all()


@pytest.mark.parametrize("dtype", [INT8, FLOAT8], ids=str)
def test_no_scale_that_is_rounded_down_makes_a_number_wrap_or_become_nan(dtype):
    """Scales just below the middle of two numbers of bfloat16, of every last bit: as far down as rounding goes."""
    middle = (1.0 + (2 * np.arange(128) + 1) / 256) * (1 - 2.0**-20)
    largest = np.float32(middle * largest_number(dtype))
    got = read(np.stack([largest, -largest], axis=-1), dtype)
    np.testing.assert_allclose(got, np.stack([largest, -largest], axis=-1), rtol=2.0**-8)
    assert (np.abs(got[:, 0]) == -got[:, 1]).all()


def test_zeros_stay_zeros():
    assert (read(np.zeros((2, 16), np.float32), INT8) == 0).all()
