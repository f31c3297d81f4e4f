"""Latent attention of steps with rows of many tokens: as over a whole sequence at once, and each row in its own part."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.config.kernels import AUTOMATIC
from jaxserve.config.windows import group_layers
from jaxserve.executor import expanded_latents
from jaxserve.executor.cache_arrays import CacheArrays
from jaxserve.executor.expanded_latents import Part, Split, expanded_from, heads_at_once, token_bytes
from jaxserve.executor.paged_attention import PagedAttend
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.latent_heads import LatentHeads
from jaxserve.step.buckets import Bucket
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.ragged_paged_attention.query_tiles import Rows
from sharding import make_mesh
from tests.support.one_program import at_once
from tests.support.plans import device_batch, make_plan

HEADS, NOPE, SHARED, VALUE, LATENT, PAGE = 4, 4, 3, 5, 16, 4
OPTIONS = AttentionOptions(scale=0.3, value_dim=LATENT)
WORTH = 10
"""Tokens from which on these heads' keys and values are made: 3/2 * 16 * 9 for 35 - 12 multiplications each."""


def layer_of(tokens: int, seed: int = 0) -> tuple[LatentHeads, Any]:
    """Heads, and latents [T, 1, D], of so many tokens."""
    rng = np.random.default_rng(seed)
    shapes = ((tokens, HEADS, NOPE + SHARED), (HEADS, NOPE, LATENT), (HEADS, VALUE, LATENT), (tokens, 1, LATENT + SHARED))
    *heads, latents = (np.asarray(rng.standard_normal(shape) / 2, np.float32) for shape in shapes)
    return LatentHeads(*heads), latents  # type: ignore[arg-type]  # arrays all the same


def test_from_how_many_tokens_on() -> None:
    assert expanded_from(layer_of(1)[0]) == WORTH
    deepseek = LatentHeads(*(jnp.zeros(shape) for shape in ((1, 2, 192), (2, 128, 512), (2, 128, 512))))
    assert expanded_from(deepseek) == 256
    assert expanded_from(LatentHeads(*(jnp.zeros(shape) for shape in ((1, 2, 24), (2, 16, 8), (2, 16, 8))))) is None


def test_heads_that_fit_the_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = LatentHeads(*(jnp.zeros(shape) for shape in ((1, 6, 12), (6, 8, 8), (6, 9, 8))))
    assert token_bytes(heads) == 2 * 16 * 4
    monkeypatch.setattr(expanded_latents, "WORKSPACE_BYTES", 12800)
    assert [heads_at_once(heads, tokens) for tokens in (10, 33, 34, 50, 100, 1000)] == [6, 3, 2, 2, 1, 1]


def test_no_more_pages_than_fit_the_workspace_with_one_head(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(10, 40), (11, 40)]
    both, one = split_of(rows, 21, 30), 15 * PAGE * token_bytes(layer_of(1)[0])
    monkeypatch.setattr(expanded_latents, "WORKSPACE_BYTES", one)
    first = split_of(rows, 21, 30)
    assert both is not None
    assert first is not None
    assert (both.num_pages, first.num_pages) == (36, 15)
    np.testing.assert_array_equal(np.diff(both.long.query_start), [10, 11])
    np.testing.assert_array_equal(np.diff(first.long.query_start), [10, 0])


part_of = jax.jit(Part.of, static_argnums=2)


@settings(max_examples=200, deadline=None)
@given(counts=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=6, max_size=6))
def test_a_part_has_its_rows_tokens_in_front(counts: list[tuple[int, bool]]) -> None:
    sizes, chosen = np.array([count for count, _ in counts]), np.array([one for _, one in counts])
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    rows: Any = Rows(*(np.asarray(each, np.int32) for each in (np.zeros((6, 1)), start, sizes + 10)))  # type: ignore[arg-type]
    part = jax.tree.map(np.asarray, part_of(rows, chosen, 31))
    mine = np.flatnonzero(np.repeat(chosen, sizes))
    np.testing.assert_array_equal(part.query_start, np.concatenate([[0], np.cumsum(np.where(chosen, sizes, 0))]))
    np.testing.assert_array_equal(part.kv_length, np.where(chosen, sizes + 10, 0))
    np.testing.assert_array_equal(part.token[: len(mine)], mine)
    np.testing.assert_array_equal(part.place[mine], np.arange(len(mine)))


def run(tensor: int, rows: list[tuple[int, int, tuple[int, ...]]], cached: CacheArrays, tokens: int, given: list[Any]) -> Any:
    """One step of rows (first token, tokens, pages); `given` are the heads and latents of each row's whole sequence."""
    plan = make_plan(*((range(first, first + count), first + count, pages) for first, count, pages in rows))
    batch = device_batch(plan, Bucket(tokens=tokens, rows=len(rows) + 1), page_size=PAGE, max_pages=10)
    parts = [
        (heads.q[first : first + count], k[first : first + count])
        for (first, count, _), (heads, k) in zip(rows, given, strict=True)
    ]
    q, k = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    q, k = (np.pad(x, ((0, tokens - len(x)), (0, 0), (0, 0)), constant_values=np.nan) for x in (q, k))
    up = given[0][0]

    @jax.jit
    def step(cache: CacheArrays, q: Any, k: Any) -> Any:
        attend = PagedAttend(make_mesh(tensor), cache, batch, AUTOMATIC, group_layers((None, None)))
        heads = LatentHeads(q, up.key_up, up.value_up)
        latents = jnp.repeat(k, tensor, axis=1)
        return attend(1, heads.absorbed(), latents, None, None, OPTIONS, None, None, heads), attend.cache

    return step(cached, q, k)


def whole(heads: LatentHeads, k: jax.Array) -> jax.Array:
    return dense_attend(1, heads.absorbed(), k, None, None, OPTIONS, None, None, heads)


@pytest.mark.parametrize("tensor", [1, 2])
def test_long_and_short_rows_of_one_step(tensor: int) -> None:
    """A decode, a chunk behind what an earlier step computed, a short chunk, and a prompt; NaN where nothing was written."""
    lengths = (9, 30, 8, 12)
    given = [layer_of(length, seed) for seed, length in enumerate(lengths)]
    given = [(heads._replace(key_up=given[0][0].key_up, value_up=given[0][0].value_up), k) for heads, k in given]
    pages = ((1, 2, 3), (4, 9, 5, 10, 6, 11, 7, 8), (12, 13), (16, 14, 15))
    cache = CacheArrays(jnp.full((2, 17, 1, tensor, PAGE, LATENT + SHARED), jnp.nan))
    _, cache = run(tensor, [(0, 8, pages[0]), (0, 11, pages[1]), (0, 5, pages[2])], cache, 30, given[:3])
    rows = [(8, 1, pages[0]), (11, 19, pages[1]), (5, 3, pages[2]), (0, 12, pages[3])]
    got = np.asarray(run(tensor, rows, cache, 40, given)[0])
    place = 0
    for (first, count, _), (heads, k) in zip(rows, given, strict=True):
        want = at_once(whole, heads, k)
        np.testing.assert_allclose(got[place : place + count], want[first : first + count], atol=2e-6, rtol=0)
        place += count


def split_of(rows: list[tuple[int, int]], tokens: int, max_pages: int) -> Split | None:
    """Of rows (tokens, keys)."""
    plan = make_plan(*((range(length - count, length), length, tuple(range(1, 1 - -length // PAGE))) for count, length in rows))
    batch = device_batch(plan, Bucket(tokens=tokens, rows=len(rows)), page_size=PAGE, max_pages=max_pages)
    split = jax.jit(lambda batch, heads: Split.of(batch, 0, heads, PAGE))(batch, layer_of(tokens)[0])
    found: Split | None = jax.tree.map(np.asarray, split)
    return found


def test_rows_that_do_not_fit_the_workspace_attend_to_latents() -> None:
    split = split_of([(10, 40), (1, 40), (11, 40), (10, 10), (9, 9)], 42, 10)
    assert split is not None
    assert split.num_pages == 10 + 11
    np.testing.assert_array_equal(np.diff(split.long.query_start), [10, 0, 11, 0, 0])
    np.testing.assert_array_equal(np.diff(split.short.query_start), [0, 1, 0, 10, 9])
    roomy = split_of([(10, 40), (1, 40), (11, 40), (10, 10), (9, 9)], 42, 12)
    assert roomy is not None
    np.testing.assert_array_equal(np.diff(roomy.long.query_start), [10, 0, 11, 10, 0])
    np.testing.assert_array_equal(roomy.is_long[:41], [True] * 10 + [False] + [True] * 21 + [False] * 9)


def test_a_step_too_small_for_a_long_row_has_one_part() -> None:
    assert split_of([(1, 9), (1, 3)], WORTH - 1, 10) is None
    assert split_of([(1, 9), (1, 3)], WORTH, 10) is not None
