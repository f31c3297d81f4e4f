"""Snapshots of recurrent states: which are found, and which make way."""

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.sequence_pages import SequenceState
from jaxserve.cache.state_pool import StatePool
from jaxserve.config.states import StatePlaces

PLACES = StatePlaces(slots=2, width=3, snapshots=3, interval=8)
A, B, C, D = (bytes([letter]) * 16 for letter in b"abcd")
ROOT, SIZE = b"root", 4
FIRST, SECOND, THIRD = range(PLACES.first_snapshot, PLACES.count)


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
    assert pool.take(()) == SECOND
    assert B not in pool
    assert pool.num_evicted == 1
    pool.insert(D, SECOND)
    pool.check(())
    assert pool.take({THIRD}) is not None, "C is read in this step: A makes way though it was used"
    assert (C in pool, A in pool) == (True, False)


def test_a_later_one_of_the_same_sequence_is_where_the_earlier_was_unless_others_used_it():
    pool, state = filled(A, B, C), SequenceState(latest=B)
    assert pool.take_for(state, {SECOND}) == SECOND
    assert (A in pool, B in pool, C in pool) == (True, False, True)
    pool.insert(B, SECOND)
    pool.use(B)  # somebody else goes on from it
    assert pool.take_for(state, ()) == FIRST, "the least recently used one's"
    pool.check([FIRST])


def test_a_snapshot_that_is_gone_on_from_makes_way_for_the_next_unless_two_did():
    pool, state = filled(A, B, C), SequenceState()
    pool.restore(state, B, goes_on=True)
    assert state.restored == SECOND
    assert pool.take_for(state, {SECOND}) == SECOND
    pool.insert(D, SECOND)
    for _ in range(2):
        pool.restore(state, D, goes_on=True)
    assert pool.take_for(state, {SECOND}) == FIRST
    pool.restore(state, C, goes_on=False)
    assert state.origin is None


def test_pinned_ones_stay_and_equal_ones_are_one():
    pool = filled(A, B)
    insert(pool, B)  # computed twice
    pool.check(())
    pool.pin([A, C])
    pool.pin([C])
    for _ in range(2):
        insert(pool, D)
    assert A in pool
    assert pool.take({THIRD}) is not None
    assert pool.take({THIRD}) is None, "one is pinned, one is read, and one is nobody's yet"
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
    assert (match.num_tokens, len(match.pages), match.branch) == (12, 3, 0), "four tokens behind a snapshot are not worth another"
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


def test_a_conversation_leaves_its_next_snapshot_where_its_last_one_was():
    """So as many conversations as there are snapshots never take one from each other, whoever of them is next."""
    pool = StatePool(PLACES)
    cache = KVCache(100, SIZE, prefix_caching=True, states=pool)
    said = [[100 * conversation + token for token in range(10)] for conversation in range(3)]
    for turn in range(4):
        for conversation, tokens in enumerate(said):
            match = cache.find(ROOT, tokens, [])
            assert match.num_tokens == 8 * turn
            sequence = cache.begin(match, len(tokens))
            assert cache.grow(sequence, len(tokens))
            busy = {sequence.state.restored} - {0}
            place = cache.keep_state(sequence, 8 * turn + 8, busy)
            assert busy <= {place}, "it is read by the same row"
            cache.commit(sequence, tokens, len(tokens))
            cache.release(sequence)
            said[conversation] = tokens + [1000 + token for token in range(8)]
    cache.check([])
    assert pool.num_evicted == 9


def test_what_two_prompts_begin_with_is_kept_when_both_went_on():
    cache = KVCache(100, SIZE, prefix_caching=True, states=StatePool(PLACES))
    shared = list(range(8))

    def run(own, *kept):
        tokens = shared + [own] * 10
        sequence = cache.begin(cache.find(ROOT, tokens, []), len(tokens))
        assert cache.grow(sequence, len(tokens))
        found, branch = sequence.num_shared * SIZE, sequence.state.branch
        for count in kept:
            assert cache.keep_state(sequence, count, {sequence.state.restored}) is not None
        cache.commit(sequence, tokens, len(tokens))
        cache.release(sequence)
        return found, branch

    assert run(101, 16) == (0, 0)
    assert run(102, 8, 16) == (0, 8)
    for own in range(103, 108):  # the snapshots at their ends make way, that at the beginning does not
        assert run(own, 16) == (8, 0)
    cache.check([])
