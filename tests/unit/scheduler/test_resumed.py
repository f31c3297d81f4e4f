"""Sequences that another engine had begun: they go on where they were, as if nothing had been."""

import math
from dataclasses import replace

import pytest

from jaxserve.errors import InvalidRequestError, QueueFullError
from jaxserve.scheduler.constraints import behind
from jaxserve.scheduler.request import Sibling
from jaxserve.types import FinishReason
from tests.support.bench import BATCH, Bench, family, request
from tests.support.hash_executor import expected
from tests.support.scripted_grammars import ScriptedConstraint


def resumed(one, output, **more):
    return replace(one, output=tuple(output), resumed=True, **more)


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("budget", [5, 16, 64])
def test_after_every_token_it_goes_on_as_it_would_have(budget, prefix_caching):
    """Chunks of its prompt and output alike; the same bench has seen its prompt before, and all of its output."""
    whole = request("r", 11, 20)
    wanted = expected(list(whole.prompt), 20)
    bench = Bench(budget=budget, prefix_caching=prefix_caching)
    for cut in range(20):
        one = resumed(replace(whole, id=f"r{cut}"), wanted[:cut])
        bench.add(one)
        bench.run(60)
        assert bench.tokens[one.id] == wanted[cut:]
        assert bench.ended[one.id].finish_reason is FinishReason.LENGTH
    assert bench.cache.num_free == bench.cache.num_usable


def test_what_was_said_is_computed_with_the_prompt_and_found_in_the_cache():
    whole = request("r", 10, 20)
    wanted = expected(list(whole.prompt), 20)
    bench = Bench(budget=64)
    bench.add(resumed(whole, wanted[:9]))
    assert bench.rows() == {"r": 19}
    bench.run(30)
    bench.add(resumed(replace(whole, id="again"), wanted[:9]))
    plan, updates = bench.step()
    assert plan.num_tokens == 3, "four pages are known of 19 tokens"
    assert updates[0].num_cached == 10, "no more than there are in the prompt"


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("cuts", [(0, 0, 0), (5, 3, 9), (1, 0, 0), (0, 4, 0), (9, 9, 9)])
def test_each_sibling_goes_on_from_its_own(cuts, prefix_caching):
    """A first sequence that finds more than its prompt in the cache lets go of its siblings, too."""
    group = family("s", 3, 9, 12)
    wanted = expected(list(group[0].prompt), 12)
    bench = Bench(prefix_caching=prefix_caching)
    for name in "st":
        mine = [replace(one, id=name + one.id[1:], parent=one.parent and name + one.parent[1:]) for one in group]
        bench.scheduler.add([resumed(one, wanted[:cut]) for one, cut in zip(mine, cuts, strict=True)])
        bench.run(80)
        for one, cut in zip(mine, cuts, strict=True):
            assert bench.tokens[one.id] == wanted[cut:]
    assert bench.cache.num_free == bench.cache.num_usable


def test_siblings_travel_with_their_own_tokens():
    first = resumed(request("s0", 5), (1, 2), num_readings=3)
    others = first.with_siblings([Sibling("s1", 8, (3,)), Sibling("s2", 9)])[1:]
    assert [(one.id, one.seed, one.output, one.parent, one.num_readings, one.resumed) for one in others] == [
        ("s1", 8, (3,), "s0", 0, True),
        ("s2", 9, (), "s0", 0, True),
    ]


@pytest.mark.parametrize("known", range(10))
def test_what_was_read_of_the_prompt_is_not_read_again(known):
    whole = request("r", 10, 3, prompt_logprobs=0, prompt_logprobs_start=1)
    first, again = Bench(budget=4), Bench(budget=4)

    def ranks(bench, one):
        found = []
        bench.add(one)
        while bench.scheduler.sequences:
            found += [rank for update in bench.step()[1] if update.prompt_logprobs for rank in update.prompt_logprobs.rows.rank]
        return found

    all_ranks = ranks(first, whole)
    assert len(all_ranks) == 9
    assert ranks(again, replace(whole, num_readings=known, resumed=True)) == all_ranks[known:]
    assert again.tokens == first.tokens


def test_nothing_is_read_of_the_prompt_once_a_token_was_said():
    whole = request("r", 10, 3, prompt_logprobs=0)
    bench = Bench()
    bench.add(resumed(whole, expected(list(whole.prompt), 1)))
    while bench.scheduler.sequences:
        assert all(update.prompt_logprobs is None for update in bench.step()[1])
    assert bench.tokens["r"] == expected(list(whole.prompt), 3)[1:]


def test_what_ended_already_is_refused():
    bench = Bench(max_len=20)
    with pytest.raises(InvalidRequestError, match="output has 4 tokens, but it ends with its 4 tokens at most"):
        bench.add(resumed(request("r", 5, 4), (1, 2, 3, 4)))
    with pytest.raises(InvalidRequestError, match="its 15 tokens at most"):
        bench.add(resumed(request("r", 5, 40), range(15)))
    assert not bench.scheduler.has_work


def test_said_stop_tokens_and_min_tokens_count_from_the_prompt():
    """With every token a stop token, min_tokens are what there is, and one more."""
    whole = request("r", 5, 20)
    wanted = expected(list(whole.prompt), 7)
    whole = request("r", 5, 20, eos=wanted, min_tokens=6)
    for cut in range(7):
        bench = Bench()
        bench.add(resumed(whole, wanted[:cut]))
        bench.run(30)
        assert bench.tokens["r"] == wanted[cut:]
        assert bench.ended["r"].finish_reason is FinishReason.STOP


def test_it_comes_before_all_that_did_not_begin_and_in_the_order_it_came():
    bench = Bench(max_num_seqs=1)
    bench.add(request("new", 4, 1), resumed(request("a", 4, 2), (1,)), resumed(request("b", 4, 2), (1,)))
    assert [list(bench.rows()) for _ in range(3)] == [["a"], ["b"], ["new"]]


def test_it_is_not_displaced_from_a_full_queue_and_a_full_queue_of_such_takes_no_more():
    bench = Bench(max_waiting=2)
    bench.add(resumed(request("a", 4, tenant="most"), (1,)), resumed(request("b", 4, tenant="most"), (1,)))
    with pytest.raises(QueueFullError):
        bench.add(request("c", 4, tenant="other"))
    assert set(bench.scheduler.sequences) == {"a", "b"}


def test_what_was_said_counts_in_the_queue():
    bench = Bench(max_waiting_tokens=20)
    bench.add(request("a", 10))
    assert bench.scheduler.has_room([resumed(request("b", 5), range(5))])
    assert not bench.scheduler.has_room([resumed(request("b", 5), range(6))])


def test_an_overload_is_no_reason_to_refuse_it():
    one = request("a", 5)
    assert one.may_be_shed
    assert not resumed(one, ()).may_be_shed
    assert not replace(one, service_class=BATCH).may_be_shed


def test_a_time_to_start_holds_for_what_had_not_begun():
    bench = Bench(max_num_seqs=1)
    bench.add(request("first", 4, 50))
    bench.step(seconds=0.1)
    bench.add(resumed(request("late", 4, queue_deadline=1.0), ()), resumed(request("begun", 4), (1,), queue_deadline=math.inf))
    bench.run(20, seconds=0.1)
    assert bench.ended["late"].error is not None
    assert "begun" in bench.scheduler.sequences


@pytest.mark.parametrize("known", [True, False])
def test_its_wait_teaches_nothing_about_this_engine(known):
    bench = Bench(max_num_seqs=1)
    bench.add(*(request(name, 4, 8) for name in "abc"))
    bench.run(10, seconds=1.0)
    bench.add(replace(request("old", 4, 8), arrival=-1000.0, resumed=known))
    bench.run(40, seconds=1.0)
    assert set(bench.ended) == {*"abc", "old"}
    assert bench.scheduler.counts().queue_estimate_misses == (0 if known else 1)


def test_a_constraint_follows_what_was_said_and_refuses_what_ended_by_it():
    said, ended = ScriptedConstraint(3), []
    while True:
        ended.append(min(said.now_allowed()))
        if not said.accept(ended[-1]):
            break
    followed = ScriptedConstraint(3)
    for token in ended[:-1]:
        followed.accept(token)
    again = behind(ScriptedConstraint(3), ended[:-1])
    assert isinstance(again, ScriptedConstraint)
    assert again.now_allowed() == followed.now_allowed()
    with pytest.raises(InvalidRequestError, match="ends by its grammar"):
        behind(ScriptedConstraint(3), ended)
