"""Layers with windows: what long sequences hold, and that their tokens are those of the windows."""

import numpy as np
import pytest

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.sequence_pages import SequencePages
from jaxserve.cache.swap import SwapSpace
from jaxserve.step.plan import MoveKind
from tests.support.bench import Bench, family, request
from tests.support.hash_executor import expected, score_of
from tests.support.plans import moved

PAGE, BUDGET = 4, 16


def bench(windows=(10,), **options):
    return Bench(**{"page_size": PAGE, "budget": BUDGET, "windows": windows} | options)


def outputs(bench, *requests):
    return {one.id: expected(list(one.prompt), one.max_tokens, windows=bench.executor.windows) for one in requests}


def held(bench, name):
    return bench.cache.num_held(bench.scheduler.sequences[name].pages)


def test_a_long_sequence_holds_its_window_and_its_chunk():
    one = bench(num_pages=9)
    item = request("a", 150, 200)
    one.add(item)
    most = 0
    while one.scheduler.sequences:
        plan, _ = one.step()
        if "a" not in one.scheduler.sequences:
            break
        end = int(plan.kv_length[0])
        start = end - plan.num_tokens
        first = max(0, start - 9) // PAGE
        assert held(one, "a") == -(-end // PAGE) - first
        assert np.flatnonzero(plan.page_table[0]).tolist() == list(range(first, -(-end // PAGE)))
        most = max(most, held(one, "a"))
    assert one.tokens == outputs(one, item)
    assert most == one.cache.most_pages(350) == 7
    assert one.cache.num_free == 8


def test_pages_that_windows_leave_let_more_sequences_run():
    one = bench(num_pages=25, max_num_seqs=5)
    items = [request(name, 40, 100) for name in "abcde"]
    one.add(*items)
    rows = [len(counts) for counts in one.run(300)]
    assert max(rows) == 5
    assert one.preemptions == []
    assert one.tokens == outputs(one, *items)


@pytest.mark.parametrize(("windows", "pages"), [((10,), 17), ((None, 10), 61)])
def test_admission_looks_ahead_within_windows(windows, pages):
    """With outputs as long as expected nobody is preempted, though not all could ever run at once."""
    one = bench(windows, num_pages=pages, max_num_seqs=8, growth_reserve=1.0)
    items = [request(name, 3, 60) for name in "abcdefgh"]
    one.add(*items)
    rows = [len(counts) for counts in one.run(400)]
    assert one.preemptions == []
    assert 2 <= max(rows) < 8
    assert one.tokens == outputs(one, *items)


def test_the_same_pages_are_too_few_without_windows():
    one = bench((None,), num_pages=101, max_num_seqs=5)
    one.add(*[request(name, 40, 100) for name in "abcde"])
    one.run(300)
    assert one.preemptions


def test_a_prompt_is_found_by_what_its_next_token_sees():
    one = bench(num_pages=9)
    item = request("a", range(90), 5)
    one.add(item)
    one.run(20)
    one.add(again := request("b", [*range(80), 1, 2], 5))
    assert one.rows() == {"b": 2}
    one.run(20)
    assert one.ended["b"].num_cached == 80
    assert one.tokens == outputs(one, item, again)


def test_a_shorter_prefix_is_not_found_when_its_pages_went():
    one = bench(num_pages=9)
    one.add(request("a", range(90), 5))
    one.run(20)
    one.add(item := request("b", [*range(30), 1, 2], 5))
    one.run(20)
    assert one.ended["b"].num_cached == 0
    assert one.tokens["b"] == outputs(one, item)["b"]


def test_a_late_sibling_does_not_share_what_its_parent_gave_back():
    one = bench(max_num_seqs=2, prefix_caching=False)
    items = family("a", 2, range(42), 40)
    one.add(request("x", 3, 45))
    one.scheduler.add(items)
    one.run(30)
    assert "a1" not in one.tokens
    one.run(100)
    assert not any(moved(plan, MoveKind.COPY) for plan in one.executor.plans)
    assert one.tokens["a1"] == outputs(one, *items)["a1"]


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_siblings_copy_a_page_of_every_group(prefix_caching):
    one = bench((None, 10), prefix_caching=prefix_caching)
    items = family("a", 2, range(43), 20)
    one.scheduler.add(items)
    one.run(100)
    assert [len(moved(plan, MoveKind.COPY)) for plan in one.executor.plans if plan.moves] == [2]
    assert one.tokens == outputs(one, *items)


def test_what_is_swapped_is_what_is_held():
    one = bench(num_pages=9, swap=SwapSpace(40, 0.0), swap_slots=40, max_num_seqs=4, low_watermark=0.0)
    items = [request(name, 3, 60) for name in "abcd"]
    one.add(*items)
    one.run(400, seconds=1.0)
    swaps = [len(out) for plan in one.executor.plans if (out := moved(plan, MoveKind.TO_TIER))]
    assert swaps
    assert max(swaps) <= -(-9 // PAGE) + 1, "what the next token sees"
    assert one.tokens == outputs(one, *items)


def test_scores_see_windows():
    one = bench()
    prompt = tuple(range(7, 47))
    one.add(request("a", prompt, 3, prompt_logprobs=0))
    got = []
    while one.scheduler.sequences:
        scores = [update.prompt_logprobs for update in one.step()[1]]
        got += [rank for scored in scores if scored is not None for rank in scored.rows.rank.tolist()]
    assert got == [score_of(list(prompt[max(0, place - 10) : place]), prompt[place]) for place in range(1, 40)]


def test_pins_hold_what_the_next_token_sees():
    one = bench(num_pages=41)
    one.add(request("a", range(81), 1))
    one.run(20)
    assert one.cache.pin(b"root", range(80), "") == 3
    assert one.cache.num_pinned == 3
    one.add(request("b", range(80), 1))
    assert one.rows() == {"b": 4}, "its last token must run, and the page that it is in is written anew"


def test_a_window_needs_to_know_the_chunk():
    with pytest.raises(ValueError, match="needs max_chunk"):
        KVCache(9, 4, prefix_caching=True, windows=(None, 5))


def test_a_cache_without_room_does_not_resume():
    cache = KVCache(4, 4, prefix_caching=False, windows=(10,), max_chunk=8)
    empty = SequencePages(b"")
    assert cache.resume(empty, 20)
    assert [bool(page) for page in empty.pages] == [False] * 2 + [True] * 3
    cache.check([empty])
    other = SequencePages(b"")
    assert not cache.resume(other, 1)
    assert other.pages == []


def test_a_fork_takes_what_its_next_token_sees():
    cache = KVCache(9, 4, prefix_caching=False, windows=(5,), max_chunk=20)
    parent = SequencePages(b"")
    assert cache.grow(parent, 18)
    fork = cache.fork(parent, 18)
    assert fork is not None
    assert fork.pages.pages[:4] == [0, 0, 0, parent.pages[3]]  # token 18 sees 14 to 18
    assert fork.copies == ((parent.pages[4], fork.pages.pages[4]),)
    cache.check([parent, fork.pages])


def test_a_fork_needs_a_page_to_copy_to_in_every_group():
    cache = KVCache(8, 4, prefix_caching=False, windows=(None, 9, 9), max_chunk=20)
    parent = SequencePages(b"")
    assert cache.grow(parent, 6)
    assert cache.num_free == 1
    assert cache.fork(parent, 6) is None
    assert cache.num_free == 1
    fork = cache.fork(parent, 4)
    assert fork is not None
    assert fork.copies == ()


def test_a_page_that_was_given_back_before_it_was_known_is_not_found():
    cache = KVCache(9, 1, prefix_caching=True, windows=(2,), max_chunk=8)
    late = SequencePages(b"")
    assert cache.grow(late, 8)
    cache.slide(late, 8)
    cache.commit(late, range(8), 8)
    assert cache.find(b"", range(6), []).num_tokens == 0
    assert cache.find(b"", range(9), []).num_tokens == 8
