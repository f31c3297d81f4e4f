"""The page pool: what is handed out, in which order, whom it is charged to, and what its own check notices."""

import pytest

from jaxserve.cache.page_pool import NULL_PAGE, PagePool
from jaxserve.cache.prefix_cache import PrefixCache
from jaxserve.cache.tenants import Tenants


class Harness:
    """A pool with what it stands on; pages are allocated for a named tenant and cached under one-byte names."""

    def __init__(self, num_pages, quotas=None):
        self.tenants = Tenants((quotas or {}).get, lifetime=num_pages - 1)
        self.prefixes = PrefixCache(num_pages)
        self.pool = PagePool(num_pages, self.prefixes, self.tenants)

    def allocate(self, count, tenant=""):
        return self.pool.allocate(count, self.tenants.account(tenant))

    def cache(self, pages):
        for page in pages:
            self.pool.insert(b"%d" % page, page, 0)

    def cached(self, count, tenant=""):
        """Free pages that can be found."""
        pages = self.allocate(count, tenant)
        self.cache(pages)
        self.pool.release(pages)
        return pages

    def findable(self, pages):
        return [page for page in pages if self.prefixes.entry(page) is not None]


def test_every_page_but_the_null_page_is_handed_out_once():
    harness = Harness(5)
    assert (harness.pool.num_free, harness.pool.num_usable) == (4, 4)
    first, second = harness.allocate(3), harness.allocate(1)
    assert sorted(first + second) == [1, 2, 3, 4]
    assert NULL_PAGE not in first + second
    assert harness.pool.num_free == 0


def test_a_pool_needs_a_page_besides_the_null_page():
    with pytest.raises(ValueError, match="num_pages must be at least 2, got 1"):
        Harness(1)


def test_asking_for_too_many_changes_nothing():
    harness = Harness(4)
    held = harness.allocate(1)
    with pytest.raises(MemoryError, match="3 pages asked for, 2 free of 3"):
        harness.allocate(3)
    assert harness.pool.num_free == 2
    harness.pool.check([held])


def test_pages_that_nobody_can_hit_are_used_before_cached_ones():
    harness = Harness(5)
    pages = harness.allocate(4)
    harness.cache(pages[:2])
    harness.pool.release(pages)
    assert set(harness.allocate(2)) == set(pages[2:])
    assert harness.findable(pages) == pages[:2]


def test_cached_pages_are_evicted_in_the_order_of_their_release():
    harness = Harness(5)
    pages = harness.allocate(4)
    harness.cache(pages)
    order = [pages[2], pages[0], pages[3], pages[1]]
    harness.pool.release(order[:3])
    harness.pool.release(order[3:])
    assert [harness.allocate(1)[0] for _ in order] == order
    assert harness.tenants.counters()[""].evicted == 4
    assert len(harness.prefixes) == 0


def test_a_page_used_again_is_evicted_last():
    harness = Harness(4)
    pages = harness.cached(3)
    harness.pool.share(pages[:1])
    assert harness.pool.num_free == 2
    assert harness.pool.num_references(pages[0]) == 1
    harness.pool.release(pages[:1])
    assert harness.allocate(2) == pages[1:]
    assert harness.findable(pages) == pages[:1]


def test_an_evicted_page_is_no_longer_cached():
    harness = Harness(2)
    pages = harness.cached(1)
    for _ in range(2):
        assert harness.allocate(1) == pages
        assert harness.findable(pages) == []
        harness.pool.release(pages)
    assert harness.tenants.counters()[""].evicted == 1, "its second use was not cached"


@pytest.mark.parametrize(("turns", "keeps"), [(4, True), (5, False)])
def test_a_page_that_was_hit_waits_for_a_turnover_of_the_pool(turns, keeps):
    """Five pages, and a hit is worth one level: when five pages were handed out since, nothing but recency counts."""
    harness = Harness(6)
    harness.allocate(1)
    hit = harness.cached(1)
    harness.prefixes.count_hit(hit)
    harness.pool.share(hit)
    harness.pool.release(hit)
    for _ in range(turns - 1):
        harness.cached(1)
    last = harness.allocate(1)
    harness.cache(last)
    harness.pool.release(last)
    harness.allocate(3)
    assert (harness.findable(hit) == hit) == keeps


def test_a_shared_page_is_free_after_its_last_release():
    """Catches a reference count that is off by one in share or release."""
    harness = Harness(3)
    pages = harness.allocate(1)
    harness.pool.share(pages)
    assert harness.pool.num_references(pages[0]) == 2
    harness.pool.check([pages, pages])
    harness.pool.release(pages)
    assert harness.pool.num_references(pages[0]) == 1
    assert harness.pool.num_free == 1
    harness.pool.release(pages)
    assert harness.pool.num_references(pages[0]) == 0
    assert harness.pool.num_free == 2


def test_pages_are_counted_by_how_many_hold_them():
    harness = Harness(4)
    pages = harness.allocate(2)
    harness.pool.share(pages[:1])
    assert [harness.pool.count_held([1, 2, 3], times) for times in range(4)] == [1, 1, 1, 0]


def test_double_release_is_an_error():
    harness = Harness(3)
    pages = harness.allocate(1)
    harness.pool.release(pages)
    with pytest.raises(ValueError, match=f"page {pages[0]} is released more often than it was taken"):
        harness.pool.release(pages)
    assert harness.pool.num_free == 2


def test_a_free_page_that_nobody_can_find_is_not_shared():
    harness = Harness(3)
    pages = harness.allocate(1)
    harness.pool.release(pages)
    with pytest.raises(KeyError):
        harness.pool.share(pages)
    harness.pool.check([])


@pytest.mark.parametrize(
    "holders",
    [
        [[1]],  # a page that is held but has no holder: a leak
        [[1, 2], [2]],  # a holder without a reference
        [[1, 2], [0]],  # the null page
        [[1, 2, 3]],  # a free page in a page table
    ],
    ids=["leak", "unreferenced", "null", "freed"],
)
def test_check_notices(holders):
    harness = Harness(4)
    assert harness.allocate(2) == [1, 2]
    harness.pool.check([[1, 2]])
    with pytest.raises(AssertionError):
        harness.pool.check(holders)


def test_check_notices_a_page_lost_from_the_free_list():
    harness = Harness(4)
    harness.pool.check([])
    harness.pool._blank.remove(2)
    with pytest.raises(AssertionError, match="free list"):
        harness.pool.check([])


def test_check_notices_a_page_that_is_free_twice():
    harness = Harness(4)
    harness.pool._blank[0] = harness.pool._blank[1]
    with pytest.raises(AssertionError, match="free list"):
        harness.pool.check([])


def test_check_notices_a_wrong_owner():
    harness = Harness(4)
    pages = harness.allocate(2, "ours")
    harness.pool.check([pages])
    harness.pool._owners[pages[0]] = harness.tenants.account("theirs")
    with pytest.raises(AssertionError, match="pages of 'ours' are miscounted"):
        harness.pool.check([pages])


def test_of_equal_pages_one_is_kept_when_all_are_free():
    harness = Harness(5)
    pages = harness.allocate(3)
    for page in pages:
        harness.pool.insert(b"same", page, 0)
    harness.pool.check([pages])
    for index, page in enumerate(pages):
        assert harness.prefixes.match([b"same"]) == [page]
        harness.pool.release([page])
        harness.pool.check([pages[index + 1 :]])
    assert harness.findable(pages) == pages[2:]
    harness.allocate(3)
    assert harness.findable(pages) == pages[2:], "the others were as good as new"


def test_a_free_page_is_dropped_for_an_equal_one_in_use():
    harness = Harness(4)
    old = harness.cached(1)
    new = harness.allocate(1)
    harness.pool.insert(b"%d" % old[0], new[0], 0)
    harness.pool.check([new])
    assert harness.findable(old + new) == new
    assert harness.pool.num_free == 2


def test_pages_are_charged_to_who_allocated_them_until_they_are_evicted():
    harness = Harness(5)
    ours = harness.allocate(2, "ours")
    harness.cache(ours)
    assert harness.tenants.pages("ours") == 2
    harness.pool.share(ours)
    assert harness.tenants.pages("ours") == 2, "different pages count, not references"
    harness.pool.release(ours)
    harness.pool.release(ours)
    assert harness.tenants.pages("ours") == 0, "only pages in use count"
    harness.pool.share(ours[:1])
    assert harness.tenants.pages("ours") == 1
    harness.pool.check([ours[:1]])
    theirs = harness.allocate(3, "theirs")
    assert harness.tenants.counters()["ours"].evicted == 1
    assert harness.tenants.pages("theirs") == 3
    harness.pool.give_to(ours[:1], harness.tenants.account("theirs"))
    assert (harness.tenants.pages("ours"), harness.tenants.pages("theirs")) == (0, 4)
    harness.pool.check([theirs, ours[:1]])


def test_a_tenant_at_its_quota_evicts_its_own_pages():
    harness = Harness(7, {"small": 2})
    theirs = harness.cached(2, "other")
    small = harness.cached(4, "small")
    assert harness.allocate(3, "small") == small[:3], "its own, though others' are older"
    harness.pool.check([small[:3]])
    assert harness.allocate(1, "small") == small[3:], "also when most of its pages are in use"
    assert harness.allocate(1, "small") == theirs[:1], "and others' when it has no more: a quota refuses nothing"


def test_a_tenant_below_its_quota_evicts_the_oldest_page():
    harness = Harness(5, {"small": 3})
    theirs = harness.cached(2, "other")
    small = harness.cached(2, "small")
    assert harness.allocate(1, "small") == theirs[:1]
    assert harness.allocate(1, "small") == small[:1], "now it is at its quota"


def test_others_evict_from_tenants_beyond_their_quota():
    harness = Harness(7, {"small": 2, "large": 3})
    oldest = harness.cached(1, "other")
    large = harness.cached(2, "large")
    small = harness.cached(3, "small")
    assert harness.allocate(1, "third") == small[:1]
    assert harness.allocate(3, "third") == oldest + large, "now nobody is beyond a quota"
    assert harness.allocate(2, "third") == small[1:]
    harness.pool.check([oldest + large + small])


def test_forgotten_pages_stay_free_and_are_not_charged():
    harness = Harness(6, {"ours": 2})
    free, held = harness.cached(3, "ours"), harness.allocate(2, "ours")
    harness.cache(held)
    harness.pool.forget()
    harness.pool.check([held])
    assert harness.findable(free + held) == []
    assert harness.pool.num_free == 3
    assert harness.tenants.pages("ours") == 2
    harness.pool.release(held)
    assert harness.tenants.counters()["ours"].evicted == 0
    harness.pool.check([])


def test_listeners_are_told_of_an_eviction_while_the_page_can_still_be_found():
    harness, told = Harness(4), []

    def listen(owner, page, digest):
        told.append((owner.name, page, digest, harness.prefixes.match([digest])))

    harness.pool = PagePool(4, harness.prefixes, harness.tenants, (listen,))
    ours = harness.cached(2, "ours")
    harness.allocate(1, "theirs")
    assert told == [], "a page that nobody can find is lost to nobody"
    harness.allocate(2, "theirs")
    assert told == [("ours", page, b"%d" % page, [page]) for page in ours]
