"""Attention over pages to chosen tokens: the same as over a whole sequence at once, however many devices share the heads."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.config.kernels import AUTOMATIC, LayerRange
from jaxserve.config.windows import group_layers
from jaxserve.executor.cache_arrays import CacheArrays
from jaxserve.executor.paged_attention import PagedAttend
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.indexer import Index
from jaxserve.step.batch import DeviceBatch
from jaxserve.step.buckets import Bucket
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.registry import KernelError
from sharding import make_mesh
from tests.support.one_program import at_once
from tests.support.plans import device_batch, make_plan

TOKENS, PAGE, HEADS, DIM, INDEX_HEADS, INDEX_DIM = 21, 4, 4, 8, 16, 6
OPTIONS = AttentionOptions(scale=0.3, value_dim=5)


def given(top_k: int) -> tuple[Any, Any, Index]:
    """Queries, cached vectors and the index of all tokens."""
    rng = np.random.default_rng(0)
    sizes = ((HEADS, DIM), (1, DIM + INDEX_DIM), (INDEX_HEADS, INDEX_DIM))
    q, k, index_q = (np.asarray(rng.standard_normal((TOKENS, *size)), np.float32) for size in sizes)
    weights = np.asarray(rng.standard_normal((TOKENS, INDEX_HEADS)), np.float32)
    return q, k, Index(1, index_q, weights, k[:, 0, DIM:], top_k)  # type: ignore[arg-type]  # arrays all the same


def paged(tensor: int, top_k: int, steps: tuple[int, ...], attention: str | None = None) -> np.ndarray:
    """One row of all tokens, in so many a step, in pages that hold NaN before; the last layer of two."""
    q, k, index = given(top_k)
    cache = CacheArrays(jnp.full((2, 8, 1, tensor, PAGE, DIM + INDEX_DIM), jnp.nan))
    kernels = AUTOMATIC if attention is None else replace(AUTOMATIC, attention=(LayerRange(attention, 0, None),))
    attended, done = [], 0

    @jax.jit
    def run(cache: CacheArrays, batch: DeviceBatch, q: Any, k: Any, index_q: Any, weights: Any) -> Any:
        attend = PagedAttend(make_mesh(tensor), cache, batch, kernels, group_layers((None, None)))
        keys = k[:, 0, DIM:]
        out = attend(1, q, jnp.repeat(k, tensor, axis=1), None, None, OPTIONS, None, Index(1, index_q, weights, keys, top_k))
        return attend.cache, out

    for count in steps:
        now = slice(done, done + count)
        plan = make_plan((range(done, done + count), done + count, (2, 1, 3, 5, 4, 7)))
        bucket = Bucket(tokens=1 + (max(steps) if count > 1 else 1), rows=2)  # chunks have one program, and decodes one
        batch = device_batch(plan, bucket, page_size=PAGE, max_pages=6)

        arrays = (q[now], k[now], index.q[now], index.weights[now])
        padded = (np.pad(x, ((0, bucket.tokens - count), *[(0, 0)] * (x.ndim - 1)), constant_values=np.nan) for x in arrays)
        cache, out = run(cache, batch, *padded)
        attended.append(np.asarray(out)[:count])
        done += count
    return np.concatenate(attended)


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("steps", [(21,), (9, 10, 1, 1)])
def test_chosen_tokens(tensor: int, steps: tuple[int, ...]) -> None:
    q, k, index = given(6)
    want = at_once(dense_attend, 1, q, k, None, None, OPTIONS, None, index)
    np.testing.assert_allclose(paged(tensor, 6, steps), want, atol=1e-6, rtol=0)
    everything = at_once(dense_attend, 1, q, k, None, None, OPTIONS, None)
    assert np.abs(everything - want)[6:].max(axis=(1, 2)).min() > 1e-3, "the choice shows"
    np.testing.assert_array_equal(everything[:6], want[:6])


def test_no_more_than_may_be_chosen_is_full_attention() -> None:
    q, k, _ = given(TOKENS)
    want = at_once(dense_attend, 1, q, k, None, None, OPTIONS, None)
    np.testing.assert_allclose(paged(1, TOKENS, (13, 8)), want, atol=1e-6, rtol=0)


def test_layers_that_share_a_choice_choose_once() -> None:
    """And attend to it in their own vectors, whatever index keys these have."""
    q, k, index = given(6)
    plan = make_plan((range(TOKENS), TOKENS, (2, 1, 3, 5, 4, 7)))
    batch = device_batch(plan, Bucket(tokens=TOKENS, rows=1), page_size=PAGE, max_pages=6)
    others = np.concatenate([-k[:, :, :DIM], np.zeros((TOKENS, 1, INDEX_DIM), np.float32)], axis=2)

    def run(pages: Any) -> Any:
        attend = PagedAttend(make_mesh(1), CacheArrays(pages), batch, AUTOMATIC, group_layers((None, None)))
        return [attend(layer, q, vectors, None, None, OPTIONS, None, index) for layer, vectors in enumerate((k, others))]

    pages = jnp.full((2, 8, 1, 1, PAGE, DIM + INDEX_DIM), jnp.nan)
    traced = str(jax.make_jaxpr(run)(pages))
    assert (traced.count("name=_choose"), traced.count("name=_attend")) == (1, 2)
    for got, vectors in zip(jax.jit(run)(pages), (k, others), strict=True):
        want = at_once(dense_attend, 0, q, vectors, None, None, OPTIONS, None, index)
        np.testing.assert_allclose(got, want, atol=1e-6, rtol=0)


def test_a_named_kernel_of_other_attention_is_refused() -> None:
    with pytest.raises(KernelError, match="has no implementation 'triton'; it has: xla"):
        paged(1, 6, (21,), attention="triton")
