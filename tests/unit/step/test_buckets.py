"""Every plan within the limits fits a bucket, and there are few of them."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.step.buckets import CHUNK_ROWS, Bucket, BucketGrid


@st.composite
def grids(draw, free_padding=(False,)):
    max_rows = draw(st.integers(1, 300))
    max_tokens = draw(st.integers(max_rows, 9000))
    more = {"min_rows": draw(st.sampled_from([1, 2])), "free_padding": draw(st.sampled_from(free_padding))}
    return max_rows, max_tokens, BucketGrid.make(max_rows=max_rows, max_tokens=max_tokens, **more)


EITHER = grids(free_padding=(False, True))


@given(EITHER, st.data())
def test_every_plan_fits_the_cheapest_bucket_that_holds_it(grid, data):
    max_rows, max_tokens, buckets = grid
    rows = data.draw(st.integers(1, max_rows))
    tokens = data.draw(st.integers(rows, max_tokens))
    chosen = buckets.choose(tokens, rows)
    assert chosen.tokens >= tokens
    assert chosen.rows >= rows
    assert chosen == min(bucket for bucket in buckets.buckets if bucket.tokens >= tokens and bucket.rows >= rows)


@given(grids(), st.data())
def test_a_decode_step_is_padded_less_than_twofold(grid, data):
    max_rows, _, buckets = grid
    rows = data.draw(st.integers(1, max_rows))
    chosen = buckets.choose(rows, rows)
    assert chosen.tokens < max(2 * rows, 3)
    assert chosen.rows < max(2 * rows, 3)


@given(grids(), st.data())
def test_a_chunk_is_padded_less_than_twofold(grid, data):
    _, max_tokens, buckets = grid
    tokens = data.draw(st.integers(1, max_tokens))
    chosen = buckets.choose(tokens, 1)
    assert chosen.tokens < max(2 * tokens, 2 * CHUNK_ROWS + 1)


@given(EITHER)
def test_a_grid_is_small_sorted_and_within_limits(grid):
    max_rows, max_tokens, buckets = grid
    listed = list(buckets.buckets)
    assert listed == sorted(set(listed))
    assert len(listed) <= 4 + math.log2(max_rows) + 2 * math.log2(max_tokens)
    for bucket in listed:
        assert 1 <= bucket.rows <= bucket.tokens
        assert bucket.rows <= max(max_rows, 2)
        assert bucket.tokens <= max(max_tokens, 2)


def test_no_bucket_is_smaller_than_asked():
    assert min(bucket.rows for bucket in BucketGrid.make(max_rows=1, max_tokens=1, min_rows=2).buckets) == 2
    assert BucketGrid.make(max_rows=1, max_tokens=1, min_rows=1).buckets == (Bucket(1, 1),)


def test_the_default_grid():
    grid = BucketGrid.make(max_rows=32, max_tokens=512, min_rows=2)
    decode = [Bucket(rows, rows) for rows in (2, 4, 8, 16, 32)]
    chunks = [Bucket(tokens, 32) for tokens in (64, 128, 256, 512)]
    assert grid.buckets == (*decode, *chunks)


def test_there_are_fewer_sizes_where_padding_is_free():
    grid = BucketGrid.for_platform("cpu", max_rows=64, max_tokens=512, free_padding=True)
    assert grid.buckets == (
        *(Bucket(rows, rows) for rows in (2, 8, 16, 32, 64)),
        *(Bucket(tokens, 64) for tokens in (128, 256, 512)),
    )


def test_the_fewest_shapes_hold_every_plan():
    grid = BucketGrid.for_platform("cpu", max_rows=64, max_tokens=512, fewest=True, max_drafts=3)
    assert grid.buckets == (Bucket(64, 64), Bucket(256, 64, drafts=3), Bucket(512, 64), Bucket(512, 64, drafts=3))
    gpu = BucketGrid.for_platform("gpu", max_rows=64, max_tokens=512, fewest=True)
    assert gpu.buckets == (Bucket(64, 64), Bucket(512, 64))


@given(EITHER)
def test_steps_are_reckoned_by_the_buckets_sizes_or_in_quarters_of_a_doubling(grid):
    _, _, buckets = grid
    sizes = buckets.step_sizes
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == buckets.max_tokens
    if buckets.free_padding:
        assert all(large <= 1.25 * small for small, large in itertools.pairwise(sizes))
        assert min(sizes) <= 4
    else:
        assert set(sizes) == {bucket.tokens for bucket in buckets.buckets}


def test_the_grid_of_a_gpu():
    grid = BucketGrid.make(max_rows=600, max_tokens=2048, min_rows=1, fine=True)
    decode = [bucket.rows for bucket in grid.buckets if bucket.tokens == bucket.rows]
    assert decode == [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 600]
    assert {bucket for bucket in grid.buckets if bucket.tokens == 600} == {Bucket(600, 600)}
    assert [bucket.rows for bucket in grid.buckets if bucket.tokens == 1024] == [32, 600]
    small = BucketGrid.make(max_rows=50, max_tokens=64, min_rows=2, fine=True)
    assert [bucket.rows for bucket in small.buckets if bucket.tokens == bucket.rows] == [2, 4, 8, 16, 32, 48, 50]


@given(st.integers(1, 300), st.integers(0, 9000), st.data())
def test_a_long_row_has_more_tokens_than_rows_on_a_gpu(max_rows, more, data):
    grid = BucketGrid.make(max_rows=max_rows, max_tokens=max_rows + more, min_rows=1, fine=True)
    rows = data.draw(st.integers(1, max_rows))
    tokens = data.draw(st.integers(rows, max_rows + more))
    longest = data.draw(st.integers(-(-tokens // rows), tokens - rows + 1))
    for chosen in (grid.choose(tokens, rows, longest), grid.choose(tokens, rows, longest, among=grid.first())):
        assert chosen.tokens >= tokens
        assert chosen.rows >= rows
        assert longest <= 4 or chosen.tokens > chosen.rows


@given(EITHER, st.data())
def test_the_first_buckets_hold_every_plan(grid, data):
    max_rows, max_tokens, buckets = grid
    first = buckets.first()
    assert first <= set(buckets.buckets)
    assert len(first) <= 5
    assert {min(buckets.buckets), max(buckets.buckets)} <= first
    rows = data.draw(st.integers(1, max_rows))
    tokens = data.draw(st.integers(rows, max_tokens))
    chosen = buckets.choose(tokens, rows, among=first)
    assert chosen in first
    assert chosen.tokens >= tokens
    assert chosen.rows >= rows


@pytest.mark.parametrize(("tokens", "rows"), [(513, 1), (64, 33)])
def test_a_plan_beyond_the_limits_is_an_error(tokens, rows):
    grid = BucketGrid.make(max_rows=32, max_tokens=512, min_rows=2)
    with pytest.raises(ValueError, match=f"no bucket holds {tokens} tokens in {rows} rows"):
        grid.choose(tokens, rows)


@given(EITHER, st.integers(1, 6), st.data())
def test_rows_with_drafts_fit_a_bucket_for_them(grid, most, data):
    """Of each number of rows there is one that all of their drafts fill; steps without drafts are padded as ever."""
    max_rows, max_tokens, buckets = grid
    wide = buckets.with_drafts(most)
    rows = data.draw(st.integers(1, max_rows))
    tokens = data.draw(st.integers(rows, max_tokens))
    assert wide.choose(tokens, rows) == buckets.choose(tokens, rows)
    assert wide.step_sizes == buckets.step_sizes
    assert wide.choose(max_tokens, max_rows, 1 + most, drafts=most) in wide.first()
    for drafts in (1, most):
        chosen = wide.choose(tokens, rows, 1 + most, drafts=drafts)
        assert chosen.drafts == most
        assert chosen.tokens >= tokens
        assert chosen.rows >= rows
    decode = buckets.choose(rows, rows)
    assert wide.choose(min(decode.rows * (1 + most), max_tokens), decode.rows, drafts=1).rows <= max(decode.rows, 2)


def test_a_plan_without_drafts_takes_a_step_for_them_if_no_other_is_there():
    grid = BucketGrid.make(max_rows=8, max_tokens=64, min_rows=1).with_drafts(3)
    wide = [bucket for bucket in grid.buckets if bucket.drafts]
    assert grid.choose(2, 2, among=wide) == Bucket(8, 2, 3)
    assert grid.choose(2, 2, among=[*wide, Bucket(64, 8)]) == Bucket(64, 8)
    with pytest.raises(ValueError, match="no bucket holds 2 tokens"):
        grid.choose(2, 1, drafts=4)
