"""Several sequences of one request: one prompt, its pages shared, and outputs as if each had been alone."""

import pytest

from jaxserve.cache.swap import SwapSpace
from jaxserve.errors import InternalError, QueueFullError
from jaxserve.types import FinishReason
from tests.support.bench import BATCH, Bench, family, request
from tests.support.hash_executor import expected
from tests.support.plans import copied


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_four_sequences_hold_their_prompt_once(prefix_caching):
    """500 prompt tokens and 200 of each output in pages of 16: the prompt's 31 full pages once, and 13 pages of each sequence.

    Alone they would need 2,800 slots.
    """
    bench = Bench(num_pages=200, page_size=16, budget=512, max_len=800, prefix_caching=prefix_caching)
    prompt = [number % 50 for number in range(500)]
    requests = family("s", 4, prompt, 200)
    bench.scheduler.add(requests)
    most, computed = 0, 0
    while bench.scheduler.sequences:
        computed += sum(bench.rows().values())
        most = max(most, bench.cache.num_usable - bench.cache.num_free)
    assert most * 16 == 1328
    assert computed == 500 + 3 + 4 * 199, "siblings compute the last prompt token, for the logits"
    assert bench.tokens == dict.fromkeys(["s0", "s1", "s2", "s3"], expected(prompt, 200))


@pytest.mark.parametrize("prompt", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_outputs_are_as_if_each_were_alone(prompt, prefix_caching):
    bench = Bench(prefix_caching=prefix_caching)
    requests = family("s", 3, prompt, 6)
    bench.scheduler.add(requests)
    bench.run(50)
    assert bench.tokens == {one.id: expected(list(one.prompt), 6) for one in requests}


def test_siblings_wait_until_the_prompt_is_computed():
    bench = Bench(budget=8)
    bench.scheduler.add(family("s", 3, 20))
    assert [bench.rows() for _ in range(4)] == [{"s0": 8}, {"s0": 8}, {"s0": 4}, {"s0": 1, "s1": 1, "s2": 1}]


def test_a_page_that_both_write_is_copied():
    bench = Bench()
    bench.scheduler.add(family("s", 2, 7))
    first, _ = bench.step()
    second, _ = bench.step()
    table = second.page_table
    assert second.moves == copied((first.page_table[0, 1], table[1, 1]))
    assert table[0, 0] == table[1, 0]
    assert table[0, 1] != table[1, 1]


def test_nothing_is_copied_where_the_last_prompt_token_begins_a_page():
    bench = Bench()
    bench.scheduler.add(family("s", 2, 5))
    bench.step()
    assert bench.step()[0].moves == ()


def test_siblings_count_in_the_queue_and_none_comes_without_the_others():
    bench = Bench(max_waiting=4)
    bench.scheduler.add(family("s", 3, 4))
    assert bench.scheduler.num_waiting == 3
    with pytest.raises(QueueFullError):
        bench.scheduler.add(family("t", 2, 4))
    assert bench.scheduler.num_waiting == 3


def test_prompt_tokens_of_siblings_count_in_the_queue():
    bench = Bench(max_waiting_tokens=100)
    bench.scheduler.add(family("s", 3, 30))
    assert bench.scheduler.has_room([request("t", 10)])
    assert not bench.scheduler.has_room([request("t", 11)])


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["waits", "computes its prompt", "has an output"])
def test_the_others_go_on_when_the_first_is_aborted(steps):
    bench = Bench(budget=8)
    requests = family("s", 3, 20, 5)
    bench.scheduler.add(requests)
    bench.run(steps)
    assert bench.scheduler.abort(["s0"]) == ["s0"]
    bench.scheduler.check()
    bench.run(60)
    assert {name: bench.tokens[name] for name in ("s1", "s2")} == dict.fromkeys(
        ["s1", "s2"], expected(list(requests[0].prompt), 5)
    )
    assert bench.cache.num_free == bench.cache.num_usable


def test_after_the_first_is_gone_the_next_computes_the_prompt_for_all():
    bench = Bench(budget=64, prefix_caching=False)
    bench.scheduler.add(family("s", 3, 20))
    bench.scheduler.abort(["s0"])
    assert [bench.rows() for _ in range(2)] == [{"s1": 20}, {"s1": 1, "s2": 1}]


def test_a_held_sibling_can_be_aborted():
    bench = Bench(budget=8)
    bench.scheduler.add(family("s", 3, 20))
    bench.step()
    bench.scheduler.abort(["s1"])
    bench.scheduler.check()
    assert bench.scheduler.num_waiting == 1
    bench.run(60)
    assert bench.tokens.keys() == {"s0", "s2"}


def test_all_can_be_aborted_at_once():
    bench = Bench(budget=8)
    bench.scheduler.add(family("s", 4, 20))
    bench.step()
    assert bench.scheduler.abort(["s0", "s1", "s2", "s3"]) == ["s0", "s1", "s2", "s3"]
    bench.scheduler.check()
    assert not bench.scheduler.has_work
    assert bench.scheduler.num_waiting == 0


def test_a_poisoned_prompt_fails_each_sequence_and_nobody_else():
    bench = Bench(poison=33)
    bench.scheduler.add(family("s", 3, [33, 1, 2, 3, 4]))
    other = request("a", 6, 5)
    bench.add(other)
    bench.run(60)
    errors = {name: update.error for name, update in bench.ended.items()}
    assert {name: type(error) for name, error in errors.items() if error} == dict.fromkeys(["s0", "s1", "s2"], InternalError)
    assert bench.tokens == {"a": expected(list(other.prompt), 5)}
    assert bench.cache.num_free == bench.cache.num_usable


@pytest.mark.parametrize("places", [0, 40])
def test_preempted_siblings_come_back(places):
    swap = SwapSpace(places, 0.0) if places else None
    bench = Bench(num_pages=14, budget=64, prefix_caching=False, swap=swap, swap_slots=places)
    requests = family("s", 3, 14, 16)
    bench.scheduler.add(requests)
    bench.run(100, seconds=0.01)
    assert bench.preemptions
    assert any(event.swapped for event in bench.preemptions) == bool(places)
    assert bench.tokens == dict.fromkeys(["s0", "s1", "s2"], expected(list(requests[0].prompt), 16))
    assert bench.cache.num_free == bench.cache.num_usable


def test_a_preempted_first_sequence_keeps_its_siblings_waiting():
    bench = Bench(max_num_seqs=1, budget=8, prefix_caching=False)
    bench.scheduler.add(family("s", 2, 20, 3, service_class=BATCH))
    bench.step()
    bench.add(request("a", 4, 2))
    assert bench.plan() is None
    assert [event.id for event in bench.preemptions] == ["s0"]
    assert bench.scheduler.num_waiting == 3
    bench.run(60)
    assert {name: update.finish_reason for name, update in bench.ended.items()} == dict.fromkeys(
        ["a", "s0", "s1"], FinishReason.LENGTH
    )
    assert bench.tokens["s0"] == bench.tokens["s1"]


def test_only_the_first_sequence_is_charged_for_the_prompt():
    bench = Bench(budget=64, prefix_caching=False)
    bench.scheduler.add(family("s", 3, 20, tenant="a"))
    bench.run(2)
    assert bench.scheduler._work.counter("a") == 20 + 2 + 2, "the last prompt token of two, and an output at the price of two"


def test_a_prompt_that_is_computed_again_in_this_step_is_not_copied_from():
    """s0 lost its pages before s1 started; then both start in one step."""
    bench = Bench(max_num_seqs=2, budget=64, prefix_caching=False)
    requests = family("s", 2, 7, 6, service_class=BATCH)
    bench.add(request("o", 4, 50))
    bench.scheduler.add(requests)
    bench.step()
    bench.add(request("p", 4, 1))
    bench.step()
    assert [event.id for event in bench.preemptions] == ["s0"]
    bench.step()
    assert "p" in bench.ended
    bench.scheduler.abort(["o"])
    assert bench.rows().keys() == {"s0", "s1"}
    bench.run(20)
    assert {name: bench.tokens[name] for name in ("s0", "s1")} == dict.fromkeys(
        ("s0", "s1"), expected(list(requests[0].prompt), 6)
    )
