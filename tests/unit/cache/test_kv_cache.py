"""Sequences in the KV cache: what is found again, for whom, and what counts as room."""

import pytest

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace

SIZE = 4
ROOT = CacheNamespace("m", "float32", "r").root()
OTHER = CacheNamespace("m", "float32", "r", salt="tenant").root()


def cache_of(num_pages=9, prefix_caching=True):
    return KVCache(num_pages, SIZE, prefix_caching=prefix_caching)


def run(cache, tokens, root=ROOT):
    """A sequence whose tokens have all been computed."""
    sequence = cache.begin(cache.find(root, tokens, []), len(tokens))
    assert cache.grow(sequence, len(tokens))
    cache.commit(sequence, tokens, len(tokens))
    return sequence


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_pages_for(tokens, pages):
    assert cache_of().pages_for(tokens) == pages


def test_full_pages_of_a_released_sequence_are_found():
    cache, tokens = cache_of(), list(range(10))
    first = run(cache, tokens)
    pages = list(first.pages)
    cache.release(first)
    assert cache.num_free == cache.num_usable
    match = cache.find(ROOT, tokens, [])
    assert match.pages == tuple(pages[:2]), "the third page is not full"
    assert match.num_tokens == 8


def test_pages_of_a_running_sequence_are_shared():
    cache, tokens = cache_of(), list(range(10))
    first, second = run(cache, tokens), run(cache, [*tokens[:9], 99])
    assert first.pages[:2] == second.pages[:2]
    assert first.pages[2] != second.pages[2]
    assert cache.num_free == cache.num_usable - 4
    cache.check([first, second])
    cache.release(first)
    cache.check([second])


@pytest.mark.parametrize(("length", "found"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8)])
def test_never_all_tokens_are_found(length, found):
    cache, tokens = cache_of(), list(range(12))
    cache.release(run(cache, tokens))
    assert cache.find(ROOT, tokens[:length], []).num_tokens == found


def test_another_tenant_finds_nothing():
    cache, tokens = cache_of(), list(range(10))
    cache.release(run(cache, tokens))
    assert cache.find(OTHER, tokens, []).pages == ()
    theirs = run(cache, tokens, OTHER)
    assert cache.find(ROOT, tokens, []).pages != cache.find(OTHER, tokens, []).pages == tuple(theirs.pages[:2])


def test_a_gap_ends_the_match():
    cache, tokens = cache_of(num_pages=4), list(range(13))
    first = run(cache, tokens[:12])
    cache.release(first)
    run(cache, [50])  # takes the page evicted first: the last of the sequence
    assert cache.find(ROOT, tokens, []).num_tokens == 8


def test_nothing_is_found_before_it_is_committed_or_without_prefix_caching():
    cache, tokens = cache_of(), list(range(10))
    sequence = cache.begin(cache.find(ROOT, tokens, []), len(tokens))
    cache.grow(sequence, len(tokens))
    assert cache.find(ROOT, tokens, []).num_tokens == 0
    cache.commit(sequence, tokens, 7)
    assert cache.find(ROOT, tokens, []).num_tokens == 4, "7 computed tokens fill one page"
    plain = cache_of(prefix_caching=False)
    plain.release(run(plain, tokens))
    assert plain.find(ROOT, tokens, []).num_tokens == 0


def test_tokens_not_known_yet_are_not_committed():
    """Overlapping steps compute a token whose value is still on the device."""
    cache, tokens = cache_of(), list(range(7))
    sequence = cache.begin(cache.find(ROOT, tokens, []), len(tokens))
    cache.grow(sequence, 8)
    cache.commit(sequence, tokens, 8)
    assert len(sequence.hashes) == 1
    cache.commit(sequence, [*tokens, 7], 8)
    assert cache.find(ROOT, list(range(9)), []).num_tokens == 8


def test_hashes_are_computed_once():
    cache, tokens, hashes = cache_of(), list(range(10)), []
    cache.find(ROOT, tokens, hashes)
    assert len(hashes) == 2
    kept = list(hashes)
    cache.find(ROOT, [*tokens, 10, 11, 12], hashes)
    assert hashes[:2] == kept
    assert len(hashes) == 3
    assert cache.find(ROOT, tokens[:5], hashes).pages == ()


def test_growing_is_all_or_nothing():
    cache = cache_of(num_pages=4)
    sequence = cache.begin(cache.find(ROOT, [1], []), 1)
    assert cache.grow(sequence, 5)
    assert cache.grow(sequence, 5)
    assert len(sequence.pages) == 2
    assert not cache.grow(sequence, 13)
    assert len(sequence.pages) == 2
    assert cache.num_free == 1
    cache.check([sequence])


def test_a_matched_free_page_is_room_used_up():
    cache, tokens = cache_of(num_pages=4), list(range(10))
    first = run(cache, tokens)
    match = cache.find(ROOT, tokens, [])
    assert not cache.fits(match, 13, spare=0), "two shared pages, two new ones, none free"
    cache.release(first)
    match = cache.find(ROOT, tokens, [])
    assert match.num_tokens == 8
    assert cache.fits(match, 12, spare=0)
    assert not cache.fits(match, 12, spare=1)
    assert not cache.fits(match, 13, spare=0)


def test_hit_rate_counts_every_sequence():
    cache, tokens = cache_of(), list(range(10))
    run(cache, tokens)
    run(cache, tokens)
    assert (cache.queried_tokens, cache.hit_tokens) == (20, 8)
