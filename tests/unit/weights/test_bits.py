import ml_dtypes
import numpy as np
import pytest

from jaxserve.weights.bits import are_numbers, bits, convert

FLOATS = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}
BFLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
ALL_SHORT = np.arange(2**16, dtype=np.uint16)


@pytest.mark.parametrize("name", FLOATS)
def test_numbers_are_told_from_what_is_none(name):
    largest = np.array([ml_dtypes.finfo(name).max], name)
    for number in (largest, -largest, np.array([0], name), np.array([-0.0], name), np.array([], name)):
        assert are_numbers(number)
    step = bits(largest).dtype.type(1)
    infinity = (bits(largest) + step).view(largest.dtype)
    assert np.isinf(infinity.astype(np.float32)).all()
    for other in (infinity, -infinity, (bits(infinity) + step).view(name), (bits(-infinity) + step).view(name)):
        assert not are_numbers(other)
        for beside in (largest, -largest):
            assert not are_numbers(np.stack([beside, other]))
            assert not are_numbers(np.stack([other, beside]))


def test_every_bfloat16_becomes_its_float32():
    short = ALL_SHORT.view(BFLOAT16)
    np.testing.assert_array_equal(bits(convert(short, FLOAT32)), bits(short.astype(FLOAT32)))


@pytest.mark.parametrize("low", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_float32_is_rounded_to_bfloat16_as_ml_dtypes_does(low):
    wide = (ALL_SHORT.astype(np.uint32) << 16 | low).view(FLOAT32)
    numbers = wide[np.isfinite(wide)]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(bits(convert(numbers, BFLOAT16)), bits(numbers.astype(BFLOAT16)))


@pytest.mark.parametrize("value", [0x7FFF_FFFF, 0xFFFF_FFFF, 0x7F80_0001, 0xFF80_0001])
def test_nan_stays_nan_in_bfloat16(value):
    nan = np.array([value], np.uint32).view(FLOAT32)
    with np.errstate(invalid="ignore"):
        assert np.isnan(convert(nan, BFLOAT16).astype(FLOAT32)).all()


@pytest.mark.parametrize("shape", [(70_000,), (0,), (3, 40_000), (900, 70), (0, 4), (4, 0), (5, 3, 7000)])
def test_arrays_of_any_size_are_rounded(shape):
    wide = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    wide.reshape(-1)[1::20_011] = np.nan
    for block in (wide, np.asfortranarray(wide)):
        np.testing.assert_array_equal(bits(convert(block, BFLOAT16)), bits(block.astype(BFLOAT16)))


def test_what_needs_no_conversion_is_not_copied():
    block = ALL_SHORT.view(BFLOAT16)
    assert convert(block, BFLOAT16) is block
    assert np.shares_memory(bits(block), block)
