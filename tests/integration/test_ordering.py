"""Orders by comparing against numpy's stable sort, ties among them."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from jaxserve.ordering import ascending, compared, largest, ranked


@pytest.mark.parametrize("function", [ascending, compared])
@pytest.mark.parametrize(("count", "values"), [(1, 1), (17, 3), (64, 64), (300, 9)])
def test_keys_in_their_order(function: Callable[[Any], Any], count: int, values: int) -> None:
    keys = np.random.default_rng(count).integers(0, values, count).astype(np.int32)
    np.testing.assert_array_equal(jax.jit(function)(keys), np.argsort(keys, kind="stable"))


@pytest.mark.parametrize(("count", "decimals"), [(1, 0), (8, 0), (40, 1), (257, 4)])
def test_the_largest_come_first(count: int, decimals: int) -> None:
    scores = np.round(np.random.default_rng(count).standard_normal((5, count)), decimals).astype(np.float32)
    scores += 0.0  # no negative zeros: top_k puts them behind the others
    scores[1, ::3] = -np.inf
    want = np.argsort(-scores, axis=1, kind="stable")
    np.testing.assert_array_equal(jax.jit(ranked)(scores), want)
    np.testing.assert_array_equal(jax.jit(largest, static_argnums=1)(scores, (count + 1) // 2), want[:, : (count + 1) // 2])
