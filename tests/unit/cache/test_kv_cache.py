"""Sequences in the KV cache: what is found again, for whom, and what counts as room."""

import pytest

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.cache.sequence_pages import PrefixMatch
from jaxserve.cache.tenants import CacheCounters
from jaxserve.errors import InvalidRequestError

SIZE = 4
ROOT = CacheNamespace("m", "float32", "r").root()
OTHER = CacheNamespace("m", "float32", "r", salt="tenant").root()


def cache_of(num_pages=9, prefix_caching=True, **options):
    return KVCache(num_pages, SIZE, prefix_caching=prefix_caching, **options)


def run(cache, tokens, root=ROOT, tenant="", *, match=None):
    """A sequence whose tokens have all been computed."""
    sequence = cache.begin(cache.find(root, tokens, []) if match is None else match, len(tokens), tenant)
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
    cache, tokens = cache_of(), list(range(10))
    hashes: list[bytes] = []
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


def test_tenants_with_equal_prompts_do_not_share():
    """Catches a salt that is missing from the hash: each tenant's sequences share with its own only."""
    cache, tokens = cache_of(num_pages=20), list(range(10))
    roots = {name: CacheNamespace("m", "float32", "r", salt=name).root() for name in ("a", "b")}
    first = {name: run(cache, tokens, root, name) for name, root in roots.items()}
    again = {name: run(cache, tokens, root, name) for name, root in roots.items()}
    for name in roots:
        assert again[name].pages[:2] == first[name].pages[:2]
        assert cache.tenant_pages(name) == 4
    assert not set(first["a"].pages) & set(first["b"].pages)


def test_equal_pages_after_different_ones_are_not_shared():
    """Catches a hash that is not chained to the page before."""
    cache = cache_of()
    run(cache, [1, 1, 1, 1, 5, 6, 7, 8, 9])
    assert cache.find(ROOT, [2, 2, 2, 2, 5, 6, 7, 8, 9], []).num_tokens == 0
    assert cache.find(ROOT, [5, 6, 7, 8, 9], []).num_tokens == 0


def test_pages_computed_twice_are_found_when_either_sequence_is_gone():
    cache, tokens = cache_of(), list(range(9))
    first, second = run(cache, tokens), run(cache, tokens, match=PrefixMatch(ROOT))
    pages = list(second.pages)
    cache.check([first, second])
    cache.release(first)
    assert cache.find(ROOT, tokens, []).pages == tuple(pages[:2])
    assert cache.num_free == cache.num_usable - 3
    cache.release(second)
    run(cache, [50] * 20)
    assert cache.find(ROOT, tokens, []).pages == tuple(pages[:2]), "the first sequence's were used: they were not kept"


def test_the_last_full_page_is_computed_again_and_kept_once():
    cache, tokens = cache_of(), list(range(8))
    cache.release(run(cache, tokens))
    second = run(cache, tokens)
    assert cache.hit_tokens == 4
    assert cache.find(ROOT, [*tokens, 8], []).pages == tuple(second.pages)
    cache.check([second])


def test_fork_shares_full_pages_and_copies_the_last():
    cache, tokens = cache_of(), list(range(10))
    parent = run(cache, tokens, tenant="ours")
    fork = cache.fork(parent, 10)
    assert fork.pages.pages[:2] == parent.pages[:2]
    assert fork.copies == ((parent.pages[2], fork.pages.pages[2]),)
    assert fork.pages.pages[2] not in parent.pages
    assert (fork.pages.root, fork.pages.hashes, fork.pages.tenant) == (ROOT, parent.hashes, "ours")
    assert (cache.exclusive_pages(parent), cache.exclusive_pages(fork.pages)) == (1, 1)
    assert cache.tenant_pages("ours") == 4
    assert cache.queried_tokens == 10, "a fork is no query"
    cache.check([parent, fork.pages])


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_sequence_may_be_forked_again_and_a_fork_released_and_grown_again(prefix_caching):
    cache = cache_of(prefix_caching=prefix_caching)
    parent = run(cache, list(range(10)))
    forks = [cache.fork(parent, length).pages for length in (10, 4)]
    cache.check([parent, *forks])
    cache.release(forks[0])
    assert cache.grow(forks[0], 4)
    cache.check([parent, *forks])


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_pages_in_use_by_a_fork_are_not_freed(prefix_caching):
    """Catches a page that is freed, and handed out again, while a fork reads it."""
    cache, tokens = cache_of(num_pages=5, prefix_caching=prefix_caching), list(range(10))
    parent = run(cache, tokens)
    fork = cache.fork(parent, 10).pages
    cache.release(parent)
    cache.check([fork])
    assert cache.num_free == 1
    other = run(cache, [50])
    assert not set(other.pages) & set(fork.pages)
    assert not cache.grow(other, 8)
    cache.release(fork)
    cache.release(other)
    cache.check([])
    assert cache.num_free == 4


def test_a_fork_at_a_page_boundary_copies_nothing():
    cache = cache_of(num_pages=4)
    parent = run(cache, list(range(12)))
    assert cache.num_free == 0
    fork = cache.fork(parent, 8)
    assert fork.copies == ()
    assert fork.pages.pages == parent.pages[:2]
    assert (cache.exclusive_pages(parent), cache.exclusive_pages(fork.pages)) == (1, 0)
    cache.check([parent, fork.pages])


def test_a_fork_without_a_free_page_changes_nothing():
    cache = cache_of(num_pages=4)
    parent = run(cache, list(range(10)))
    assert cache.fork(parent, 10) is None
    assert parent.num_shared == 0
    cache.check([parent])


def test_a_fork_beyond_the_parent_is_an_error():
    cache = cache_of()
    parent = run(cache, list(range(8)))
    with pytest.raises(ValueError, match="fork at token 9 of a sequence with 2 pages of 4 tokens"):
        cache.fork(parent, 9)
    cache.check([parent])


def test_what_forks_compute_is_findable():
    cache = cache_of()
    parent = run(cache, list(range(6)))
    fork = cache.fork(parent, 6).pages
    for sequence, last in ((parent, 60), (fork, 70)):
        tokens = [*range(6), last, last, last]
        assert cache.grow(sequence, 9)
        cache.commit(sequence, tokens, 9)
        assert cache.find(ROOT, tokens, []).pages == tuple(sequence.pages[:2])
    assert parent.pages[0] == fork.pages[0]
    cache.check([parent, fork])


def test_check_notices_a_shared_page_that_may_be_written():
    cache = cache_of()
    parent = run(cache, list(range(10)))
    fork = cache.fork(parent, 10).pages
    cache._pool.share(parent.pages[2:])
    fork.pages[2:], freed = parent.pages[2:], fork.pages[2:]
    cache._pool.release(freed)
    with pytest.raises(AssertionError, match="is shared and may still be written"):
        cache.check([parent, fork])


def test_pinned_pages_are_never_evicted_until_they_are_unpinned():
    cache, tokens = cache_of(max_pinned=2), list(range(8))
    cache.release(run(cache, tokens))
    assert cache.pin(ROOT, [*tokens, 9, 9, 9, 9], "ours") == 2
    assert cache.pin(ROOT, tokens, "theirs") == 2, "again"
    assert (cache.num_pinned, cache.num_free, cache.tenant_pages("ours"), cache.tenant_pages("theirs")) == (2, 6, 0, 0)
    other = run(cache, [50] * 24)
    assert cache.find(ROOT, [*tokens, 9], []).num_tokens == 8
    cache.check([other])
    cache.release(other)
    cache.unpin_all()
    cache.check([])
    assert (cache.num_pinned, cache.num_free) == (0, 8)
    assert cache.find(ROOT, [*tokens, 9], []).num_tokens == 8
    run(cache, [60] * 32)
    assert cache.find(ROOT, [*tokens, 9], []).num_tokens == 0


def test_pinning_beyond_the_limit_names_the_numbers():
    cache, tokens = cache_of(num_pages=13), list(range(16))
    cache.release(run(cache, tokens))
    assert cache.pin(ROOT, tokens[:4], "") == 1
    with pytest.raises(InvalidRequestError, match=r"cannot pin 3 more pages: 1 of at most 3 are pinned \(.* has 12\)"):
        cache.pin(ROOT, tokens, "")
    assert cache.num_pinned == 1
    cache.check([])
    assert cache.pin(ROOT, tokens[:12], "") == 3
    assert cache.num_pinned == 3


def test_unpinned_pages_are_evicted_from_the_end_of_the_prompt():
    cache, tokens = cache_of(max_pinned=2), list(range(8))
    cache.release(run(cache, tokens))
    cache.pin(ROOT, tokens, "")
    cache.unpin_all()
    run(cache, [50] * 28)
    assert cache.find(ROOT, [*tokens, 9], []).num_tokens == 4


def test_only_what_is_cached_is_pinned():
    cache = cache_of()
    assert cache.pin(ROOT, list(range(8)), "") == 0
    assert cache.num_pinned == 0


def test_after_a_flush_nothing_is_found_and_pins_are_dropped():
    cache, tokens = cache_of(), list(range(12))
    cache.release(run(cache, tokens))
    running = run(cache, [*tokens[:8], 50, 51])
    cache.pin(ROOT, tokens[:8], "")
    cache.flush()
    assert (cache.num_pinned, cache.num_free, len(running.pages)) == (0, 5, 3)
    assert cache.find(ROOT, [*tokens, 0], []).num_tokens == 0
    cache.check([running])


def test_what_a_sequence_commits_after_a_flush_is_not_found():
    cache, tokens = cache_of(), list(range(6))
    running = run(cache, tokens)
    forks = [cache.fork(running, 6).pages]
    cache.flush()
    forks.append(cache.fork(running, 6).pages)
    tokens += [6, 7, 8]
    for sequence in (running, *forks):
        assert cache.grow(sequence, 9)
        cache.commit(sequence, tokens, 9)
        cache.release(sequence)
        assert cache.grow(sequence, 9), "swapped in"
        cache.commit(sequence, tokens, 9)
        cache.release(sequence)
    assert cache.find(ROOT, tokens, []).num_tokens == 0
    cache.check([])
    run(cache, tokens)
    assert cache.find(ROOT, tokens, []).num_tokens == 8, "a later one is found"


def test_counters_are_kept_by_tenant():
    cache, tokens = cache_of(), list(range(10))
    for tenant in ("a", "b", "b"):
        cache.release(run(cache, tokens, tenant=tenant))
    cache.release(run(cache, [50] * 32, tenant="c"))
    counters = cache.counters()
    assert counters["a"] == CacheCounters(queried=10, hits=0, evicted=2)
    assert counters["b"] == CacheCounters(queried=20, hits=16, evicted=0)
    assert counters["c"].misses == 32
    assert (cache.queried_tokens, cache.hit_tokens) == (62, 16)
    cache.begin(cache.find(ROOT, [1], []), 1, "a")
    assert counters["a"].queried == 10, "a copy"


def test_a_quota_decides_whose_pages_go():
    cache = cache_of(num_pages=11, quota={"scan": 3}.get)
    keep = list(range(9))
    cache.release(run(cache, keep, tenant="chat"))
    for number in range(20):
        cache.release(run(cache, [100 + number] * 9, tenant="scan"))
        cache.check([])
    assert cache.find(ROOT, keep, []).num_tokens == 8
    assert cache.counters()["chat"].evicted == 0
    assert cache.find(ROOT, [119] * 9, []).num_tokens == 8


def test_evictions_are_told_and_counted_and_nothing_else_is():
    told = []
    cache = cache_of(num_pages=7, on_eviction=(lambda owner, page, digest: told.append((owner.name, page, digest)),))
    first, equal = run(cache, range(9), tenant="chat"), run(cache, range(9), tenant="chat", match=PrefixMatch(ROOT))
    lost = list(zip(first.pages[:2], first.hashes, strict=True))
    cache.release(equal)
    cache.release(first)
    assert told == [], "of two equal pages one is kept"
    cache.release(run(cache, range(100, 124)))
    assert told == [("chat", *page) for page in reversed(lost)]
    assert cache.counters()["chat"].evicted == 2
    cache.flush()
    assert len(told) == 2, "what is flushed is not wanted"
