"""The eviction order: worth, recency, ageing; and against plain LRU on a trace with a system prompt and a scan."""

from collections import OrderedDict

import pytest

from jaxserve.cache.eviction import NUM_LEVELS, MultiQueue
from jaxserve.cache.kv_cache import KVCache


def drain(queue, now):
    order = []
    while queue:
        order.append(queue.first(now))
        queue.remove(order[-1])
    return order


def test_the_least_worth_level_goes_first_and_within_it_the_least_recent():
    queue = MultiQueue(lifetime=100)
    for page, worth in [(1, 4), (2, 0), (3, 7), (4, 1), (5, 0), (6, 2), (7, 8)]:
        queue.push(page, worth, now=0)
    assert len(queue) == 7
    assert drain(queue, now=1) == [2, 5, 4, 6, 1, 3, 7]


def test_worth_beyond_the_top_level_is_the_top_level():
    queue = MultiQueue(lifetime=100)
    for page, worth in [(1, 2**40), (2, 2 ** (NUM_LEVELS - 2)), (3, 2 ** (NUM_LEVELS - 2) - 1)]:
        queue.push(page, worth, now=0)
    assert drain(queue, now=0) == [3, 1, 2]


def test_a_page_without_a_hit_goes_down_one_level_a_lifetime():
    queue = MultiQueue(lifetime=10)
    queue.push(1, 4, now=0)  # level 3
    orders = []
    for now in (9, 10, 19, 20, 21):
        queue.push(2, 1, now)  # level 1, most recently used
        orders.append(queue.first(now))
        queue.remove(2)
    assert orders == [2, 2, 2, 2, 1], "at 20 it goes to level 1, behind page 2, and is before it from then on"


def test_a_page_goes_down_one_level_at_a_time_however_late():
    queue = MultiQueue(lifetime=10)
    queue.push(1, 4, now=0)  # level 3
    queue.push(2, 8, now=30)  # level 4
    assert queue.first(now=35) == 1, "on level 2 until 45"
    assert queue.first(now=40) == 1
    queue.push(3, 1, now=41)  # level 1
    assert queue.first(now=41) == 3


def test_pages_that_go_down_keep_their_order_and_queue_behind():
    queue = MultiQueue(lifetime=10)
    queue.push(1, 2, now=0)
    queue.push(2, 2, now=3)
    queue.push(3, 1, now=5)
    queue.push(4, 2, now=9)
    assert queue.first(now=13) == 3
    assert drain(queue, now=13) == [3, 1, 2, 4], "1 and 2 went down behind 3, which was there"


def test_removing_takes_a_page_off_its_level():
    queue = MultiQueue(lifetime=10)
    queue.push(1, 1, now=0)
    queue.push(2, 1, now=0)
    queue.remove(1)
    assert 1 not in queue
    assert 2 in queue
    with pytest.raises(KeyError):
        queue.remove(1)
    assert sorted(queue.clear()) == [2]
    with pytest.raises(LookupError):
        queue.first(now=0)
    queue.push(1, 0, now=0)
    assert queue.first(now=0) == 1


SIZE = 4
ROOT = b"root"
SYSTEM = list(range(1000, 1000 + 4 * SIZE))  # four pages


def ask(cache, tokens):
    """Run a prompt to its end; returns the tokens that were found."""
    match = cache.find(ROOT, tokens, [])
    sequence = cache.begin(match, len(tokens))
    assert cache.grow(sequence, len(tokens))
    cache.commit(sequence, tokens, len(tokens))
    cache.release(sequence)
    return match.num_tokens


def trace():
    """Three users of a system prompt, a scan of one-off prompts of 1.5 times the pool, another user, and so on."""
    number = 0
    for _ in range(4):
        for _ in range(3):
            number += 1
            yield [*SYSTEM, number]
        for _ in range(12):
            number += 1
            yield [number] * (4 * SIZE - 1)


def lru_hits(prompts, num_usable):
    """Tokens found if pages were plain LRU, the last of a prompt the first to go."""
    pages: OrderedDict[tuple[int, ...], None] = OrderedDict()
    hits = 0
    for tokens in prompts:
        names = [tuple(tokens[:end]) for end in range(SIZE, len(tokens) + 1, SIZE)]
        found = 0
        while found < len(names) and names[found] in pages and (found + 1) * SIZE < len(tokens):
            found += 1
        hits += found * SIZE
        for name in reversed(names):
            pages[name] = None
            pages.move_to_end(name)
        while len(pages) > num_usable:
            pages.popitem(last=False)
    return hits


def test_a_system_prompt_survives_a_scan_that_plain_lru_loses_it_to():
    cache = KVCache(33, SIZE, prefix_caching=True)
    hits = sum(ask(cache, tokens) for tokens in trace())
    users = sum(tokens[:4] == SYSTEM[:4] for tokens in trace())
    assert hits == (users - 1) * len(SYSTEM), "only the first user computes it"
    assert lru_hits(trace(), 32) == (users - 4) * len(SYSTEM), "plain LRU computes it again after every scan"


def test_a_prompt_that_nobody_asks_for_any_more_is_evicted():
    cache = KVCache(33, SIZE, prefix_caching=True)
    for number in range(3):
        ask(cache, [*SYSTEM, number])
    for number in range(100):
        ask(cache, [number] * (4 * SIZE - 1))
    assert cache.find(ROOT, [*SYSTEM, 0], []).num_tokens == 0
