"""What is looked at on devices and by the host is the same."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxserve.errors import CheckpointError
from jaxserve.weights.live.look import look_at

LARGE = (3, 2**17 - 11)  # some strips


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_host_finds_what_devices_find(stored, dtype):
    rng = np.random.default_rng(5)
    numbers = {"large": rng.standard_normal(LARGE), "turned": rng.standard_normal((5, 7)), "one": np.float64(2.0)}
    kind = ml_dtypes.bfloat16 if stored == "bfloat16" else stored
    given = {name: np.asarray(array).astype(kind) for name, array in numbers.items()}
    given["turned"] = given["turned"].T
    found = look_at(given, dtype)
    assert found == look_at({name: jax.device_put(array) for name, array in given.items()}, dtype)
    assert len(set(found.values())) == 3
    flipped = given["large"].copy()
    flipped[2, 4], flipped[2, 5] = given["large"][2, 5], given["large"][2, 4]
    assert look_at({"large": flipped}, dtype)["large"] != found["large"]


def test_what_is_no_number_is_told_alike():
    array = np.ones(LARGE, np.float32)
    array[1, 7], array[2, 9], array[2, 70_000] = np.nan, 1e6, -np.inf
    for dtype, count, first in (("float32", 2, [1, 7]), ("float16", 3, [1, 7])):
        told = set()
        for given in (array, jax.device_put(array)):
            with pytest.raises(CheckpointError) as caught:
                look_at({"w": given}, dtype)
            told.add(caught.value.message)
        (message,) = told
        assert f"w has {count} in {array.size}, the first at {first}" in message
