"""The page pool: what is handed out, in which order, and what its own check notices."""

import pytest

from jaxserve.cache.page_pool import NULL_PAGE, PagePool


def pool_of(num_pages):
    evicted = []
    return PagePool(num_pages, on_evict=evicted.append), evicted


def test_every_page_but_the_null_page_is_handed_out_once():
    pool, _ = pool_of(5)
    assert (pool.num_free, pool.num_usable) == (4, 4)
    first, second = pool.allocate(3), pool.allocate(1)
    assert sorted(first + second) == [1, 2, 3, 4]
    assert NULL_PAGE not in first + second
    assert pool.num_free == 0


def test_a_pool_needs_a_page_besides_the_null_page():
    with pytest.raises(ValueError, match="num_pages must be at least 2, got 1"):
        PagePool(1, on_evict=lambda page: None)


def test_asking_for_too_many_changes_nothing():
    pool, evicted = pool_of(4)
    held = pool.allocate(1)
    with pytest.raises(MemoryError, match="3 pages asked for, 2 free of 3"):
        pool.allocate(3)
    assert pool.num_free == 2
    assert evicted == []
    pool.check([held])


def test_pages_that_nobody_can_hit_are_used_before_cached_ones():
    pool, evicted = pool_of(5)
    pages = pool.allocate(4)
    for page in pages[:2]:
        pool.mark_cached(page)
    pool.release(pages)
    assert set(pool.allocate(2)) == set(pages[2:])
    assert evicted == []


def test_cached_pages_are_evicted_in_the_order_of_their_release():
    pool, evicted = pool_of(5)
    pages = pool.allocate(4)
    for page in pages:
        pool.mark_cached(page)
    order = [pages[2], pages[0], pages[3], pages[1]]
    pool.release(order[:3])
    pool.release(order[3:])
    assert [pool.allocate(1)[0] for _ in order] == order
    assert evicted == order


def test_a_page_used_again_is_evicted_last():
    pool, evicted = pool_of(4)
    pages = pool.allocate(3)
    for page in pages:
        pool.mark_cached(page)
    pool.release(pages)
    pool.share(pages[:1])
    assert pool.num_free == 2
    assert not pool.is_free(pages[0])
    pool.release(pages[:1])
    pool.allocate(2)
    assert evicted == pages[1:]


def test_an_evicted_page_is_no_longer_cached():
    pool, evicted = pool_of(2)
    page = pool.allocate(1)
    pool.mark_cached(page[0])
    pool.release(page)
    pool.allocate(1)
    pool.release(page)
    pool.allocate(1)
    assert evicted == page, "told once: its second use was not cached"


def test_a_shared_page_is_free_after_its_last_release():
    pool, _ = pool_of(3)
    pages = pool.allocate(1)
    pool.share(pages)
    pool.check([pages, pages])
    pool.release(pages)
    assert not pool.is_free(pages[0])
    assert pool.num_free == 1
    pool.release(pages)
    assert pool.is_free(pages[0])
    assert pool.num_free == 2


def test_double_release_is_an_error():
    pool, _ = pool_of(3)
    pages = pool.allocate(1)
    pool.release(pages)
    with pytest.raises(ValueError, match=f"page {pages[0]} is released more often than it was taken"):
        pool.release(pages)
    assert pool.num_free == 2


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
    pool, _ = pool_of(4)
    assert pool.allocate(2) == [1, 2]
    pool.check([[1, 2]])
    with pytest.raises(AssertionError):
        pool.check(holders)


def test_check_notices_a_page_lost_from_the_free_list():
    pool, _ = pool_of(4)
    pool.check([])
    del pool._free[2]
    with pytest.raises(AssertionError, match="free list"):
        pool.check([])
