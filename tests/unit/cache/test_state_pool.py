"""Snapshots of recurrent states: which are found, and which make way."""

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.state_pool import StatePool
from jaxserve.config.states import StatePlaces

PLACES = StatePlaces(slots=2, width=3, snapshots=3, interval=8)
A, B, C, D = (bytes([letter]) * 16 for letter in b"abcd")
ROOT, SIZE = b"root", 4


def filled(*digests):
    pool = StatePool(PLACES)
    for digest in digests:
        insert(pool, digest)
    return pool


def insert(pool, digest):
    place = pool.take(())
    assert place is not None
    pool.insert(digest, place)


def test_places():
    assert PLACES.count == 10
    assert [PLACES.own(slot) for slot in range(2)] == [1, 4]
    assert PLACES.first_snapshot == 7


def test_the_longest_prefix_with_a_snapshot_is_found():
    pool = filled(A, C)
    assert pool.find([A, B]) == 1
    assert pool.find([A, B, C, D]) == 3
    assert pool.find([B, D]) == pool.find([]) == 0


def test_the_least_recently_used_one_makes_way():
    pool = filled(A, B, C)
    pool.use(A)
    place = pool.place(B)
    assert pool.take(()) == place
    assert B not in pool
    assert pool.num_evicted == 1
    pool.insert(D, place)
    pool.check(())
    assert pool.take({pool.place(C)}) is not None, "C is read in this step: A makes way though it was used"
    assert (C in pool, A in pool) == (True, False)


def test_a_later_one_of_the_same_sequence_makes_the_earlier_go_first():
    pool = filled(A, B, C)
    pool.supersede(B)
    pool.supersede(None)
    pool.take(())
    assert (A in pool, B in pool) == (True, False)
    pool.use(C)
    pool.supersede(C)  # somebody else goes on from it
    pool.take(())
    assert (A in pool, C in pool) == (False, True)


def test_pinned_ones_stay_and_equal_ones_are_one():
    pool = filled(A, B)
    insert(pool, B)  # computed twice
    pool.check(())
    pool.pin([A, C])
    pool.pin([D])
    for _ in range(2):
        insert(pool, bytes(8) + D)
    assert A in pool
    assert pool.take({pool.place(bytes(8) + D)}) is not None
    assert pool.take({pool.place(bytes(8) + D)}) is None, "one is pinned, one is read, and one is nobody's yet"
    pool.unpin_all()
    assert pool.take(()) is not None


def test_a_cache_finds_no_prefix_without_a_snapshot_and_says_where_it_branched():
    cache = KVCache(20, SIZE, prefix_caching=True, states=StatePool(PLACES))
    tokens = list(range(20))
    first = cache.begin(cache.find(ROOT, tokens, []), 20)
    assert cache.grow(first, 20)
    cache.commit(first, tokens, 20)
    match = cache.find(ROOT, tokens, [])
    assert (match.num_tokens, match.pages, match.branch) == (0, (), 16)

    place = cache.keep_state(first, 12, ())
    assert place is not None
    assert cache.keep_state(first, 12, ()) is None, "it is kept already"
    match = cache.find(ROOT, tokens, [])
    assert (match.num_tokens, len(match.pages), match.branch) == (12, 3, 16)
    second = cache.begin(match, 20)
    assert second.state.restored == place
    cache.check([first, second])

    pending = cache.keep_state(second, 16, ())  # its fourth page is not known to be full yet
    assert pending is not None
    assert cache.find(ROOT, tokens, []).num_tokens == 12
    assert cache.grow(second, 20)
    cache.commit(second, tokens, 20)
    assert cache.find(ROOT, tokens, []).num_tokens == 16
    cache.flush()
    assert cache.find(ROOT, tokens, []).num_tokens == 0
    late = cache.begin(cache.find(ROOT, tokens, []), 20)
    assert cache.keep_state(late, 8, ()) is not None
    cache.check([first, second, late])
    for sequence in (first, second, late):  # what nobody can find yet is given back
        cache.release(sequence)
    cache.check([])
    assert not cache.can_fork(first, 0), "no state is where a fork would begin"
