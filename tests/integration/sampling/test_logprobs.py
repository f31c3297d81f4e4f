"""Log-probabilities against numpy."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.sampling.logprobs import token_logprobs
from jaxserve.sampling.vocabulary import Vocabulary
from tests.support.tiers import tiered


@pytest.mark.parametrize("count", [1, 5, 50])
def test_against_numpy(count):
    logits = (np.random.default_rng(0).standard_normal((6, 50)) * 5).astype(np.float32)
    logits[2] = np.round(logits[2]) + 0.0  # ties, but no negative zero
    tokens = np.asarray([0, 7, 49, 3, 3, 20], np.int32)
    run = jax.jit(token_logprobs, static_argnums=(2, 3))
    chosen, rank, ids, top = run(jnp.asarray(logits), jnp.asarray(tokens), count, Vocabulary(50))
    wide = logits.astype(np.float64)
    want = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    order = np.argsort(-wide, axis=1, kind="stable")[:, :count]
    rows = np.arange(6)
    np.testing.assert_allclose(chosen, want[rows, tokens], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(rank, 1 + (wide > wide[rows, tokens][:, None]).sum(axis=1))
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_allclose(top, np.take_along_axis(want, order, axis=1), rtol=1e-5, atol=1e-5)


SIZES = (300, 2000, 5003, 32_000)


@pytest.mark.parametrize(
    ("count", "size"), tiered(product((1, 7, 20), SIZES), {*((20, size) for size in SIZES), (1, 300), (7, 5003), (1, 32_000)})
)
def test_the_likeliest_of_many(size, count):
    """Wherever they are: many in one block, one in each, at its ends, and tied ones in their order."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((5, size)).astype(np.float32)
    logits[0] = np.round(logits[0]) + 0.0
    logits[1] = 7.0
    logits[2] = np.arange(size)
    logits[3] = -np.arange(size)
    logits[4, rng.choice(size, 30, replace=False)] = np.round(rng.standard_normal(30)) + 9.0
    values, ids = jax.jit(Vocabulary(size).top, static_argnums=1)(jnp.asarray(logits), count)
    order = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_array_equal(values, np.take_along_axis(logits, order, axis=1))


def test_huge_logits():
    logits = jnp.asarray([[3e38, -3e38, 0.0]])
    chosen, rank, _, top = token_logprobs(logits, jnp.asarray([0], jnp.int32), 2, Vocabulary(3))
    assert chosen.tolist() == [0.0]
    assert rank.tolist() == [1]
    assert not np.isnan(np.asarray(top)).any()
