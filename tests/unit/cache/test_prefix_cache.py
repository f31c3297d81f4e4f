"""Pages by content: several with one, and both directions in step."""

import pytest

from jaxserve.cache.prefix_cache import PrefixCache


def test_the_longest_known_prefix_is_matched():
    cache = PrefixCache(6)
    for page, digest in enumerate([b"a", b"b", b"d"], start=1):
        cache.insert(digest, page, 0)
    assert cache.match([b"a", b"b", b"c", b"d"]) == [1, 2]
    assert cache.match([b"c", b"a"]) == []
    cache.check()


def test_equal_pages_stand_in_for_one_another():
    cache = PrefixCache(6)
    for page in (3, 1, 2):
        cache.insert(b"a", page, 0)
    assert len(cache) == 1
    assert cache.match([b"a"]) == [3], "the oldest"
    cache.remove(1)
    assert cache.match([b"a"]) == [3]
    cache.remove(3)
    assert cache.match([b"a"]) == [2]
    cache.check()
    cache.remove(2)
    assert cache.match([b"a"]) == []
    assert len(cache) == 0
    cache.check()


def test_inserting_a_page_again_changes_nothing():
    cache = PrefixCache(6)
    first = cache.insert(b"a", 1, 0)
    assert cache.insert(b"a", 1, 0) is first
    assert first.pages == [1]


def test_hits_count_by_the_length_of_the_match():
    cache = PrefixCache(6)
    parent, child = cache.insert(b"a", 1, 0), cache.insert(b"b", 2, 0)
    cache.count_hit([1, 2])
    cache.count_hit([1])
    assert (parent.worth, child.worth) == (3, 2)
    with pytest.raises(KeyError):
        cache.count_hit([3])


def test_what_is_not_known_cannot_be_removed():
    cache = PrefixCache(6)
    with pytest.raises(KeyError):
        cache.remove(1)


def test_clearing_forgets_all():
    cache = PrefixCache(6)
    cache.insert(b"a", 1, 0)
    cache.clear()
    assert (len(cache), cache.entry(1)) == (0, None)
    cache.check()


@pytest.mark.parametrize(("page", "other"), [(1, None), (2, 1)])
def test_check_notices_that_directions_differ(page, other):
    cache = PrefixCache(6)
    cache.insert(b"a", 1, 0)
    cache._entry_of[page] = None if other is None else cache.entry(other)
    with pytest.raises(AssertionError):
        cache.check()
