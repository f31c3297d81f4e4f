"""The scheduler's one rule, step by step, over an executor that works by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxserve.errors import QueueFullError
from jaxserve.sampling.options import STANDARD, SUPPRESS_WIDTH
from jaxserve.sampling.params import MAX_STOP_TOKEN_IDS
from jaxserve.step.plan import LogprobRows, Plan, Reading, StepResult
from jaxserve.types import FinishReason
from tests.support.bench import MAX_LEN, Bench, counts, request, row

EOS = 49


def planned(bench: Bench) -> Plan:
    """The next step, which there must be."""
    plan = bench.plan()
    assert plan is not None
    return plan


# Who computes how much


def test_one_budget_for_prompts_and_decodes():
    bench = Bench(budget=16)
    bench.add(request("a", 5), request("b", 20), request("c", 5))
    assert counts(bench.step()[0]) == {"a": 5, "b": 11}
    assert counts(bench.step()[0]) == {"a": 1, "b": 9, "c": 5}
    assert counts(bench.step()[0]) == {"a": 1, "b": 1, "c": 1}


def test_running_sequences_come_before_waiting_ones():
    bench = Bench(budget=8)
    bench.add(request("a", 20))
    assert counts(bench.step()[0]) == {"a": 8}
    bench.add(request("b", 2))
    assert counts(bench.step()[0]) == {"a": 8}
    assert counts(bench.step()[0]) == {"a": 4, "b": 2}


def test_waiting_sequences_are_admitted_first_come_first_served():
    bench = Bench(max_num_seqs=2, budget=64)
    bench.add(request("a", 4, max_tokens=1), request("b", 4), request("c", 40), request("d", 1))
    assert counts(bench.step()[0]) == {"a": 4, "b": 4}
    assert counts(bench.step()[0]) == {"b": 1, "c": 40}, "d is small, but c came first"


def test_only_the_chunk_that_ends_the_prompt_samples():
    bench = Bench(budget=8)
    bench.add(request("a", 20))
    sampled = [bench.step()[0].samples.tolist() for _ in range(4)]
    assert sampled == [[False], [False], [True], [True]]


def test_a_long_prompt_leaves_room_for_others():
    bench = Bench(budget=16, long_prefill_token_threshold=6)
    bench.add(request("a", 20), request("b", 20), request("c", 20))
    assert counts(bench.step()[0]) == {"a": 6, "b": 6, "c": 4}
    assert counts(bench.step()[0]) == {"a": 6, "b": 6, "c": 4}
    bench.step()
    assert counts(bench.step()[0]) == {"a": 2, "b": 2, "c": 6}


def test_nothing_to_compute_is_no_plan():
    bench = Bench()
    assert bench.plan() is None
    bench.add(request("a", 3, max_tokens=1))
    _, updates = bench.step()
    assert [update.finish_reason for update in updates] == [FinishReason.LENGTH]
    assert bench.plan() is None
    assert not bench.scheduler.has_work


def test_steps_are_numbered():
    bench = Bench()
    bench.add(request("a", 3))
    assert [bench.step()[0].step for _ in range(3)] == [0, 1, 2]


def test_the_context_ends_a_sequence():
    bench = Bench(budget=MAX_LEN)
    bench.add(request("a", MAX_LEN - 2, max_tokens=100))
    reasons = [update.finish_reason for _ in range(2) for update in bench.step()[1]]
    assert reasons == [None, FinishReason.LENGTH]
    assert bench.cache.num_free == bench.cache.num_usable


# Prefix hits


def test_a_prefix_hit_starts_a_sequence_ahead():
    bench = Bench(budget=32)
    bench.add(request("a", range(20), max_tokens=1))
    bench.step()
    bench.add(request("b", [*range(18), 40, 41]), request("c", [*range(18), 40, 41], root=b"other tenant"))
    plan, updates = bench.step()
    assert counts(plan) == {"b": 4, "c": 20}
    assert [update.num_cached for update in updates] == [16, 0]


def test_requests_of_one_step_share_a_prefix():
    bench = Bench(budget=64)
    bench.add(request("a", range(20)), request("b", range(20)))
    plan, updates = bench.step()
    assert counts(plan) == {"a": 20, "b": 4}
    assert plan.page_table[0, :4].tolist() == plan.page_table[1, :4].tolist()
    assert updates[0].token == updates[1].token


# Running out of pages


def crowded():
    """Three sequences that fill 9 pages of 4 to the last token: the next step needs three more pages."""
    bench = Bench(num_pages=10, budget=64, max_num_seqs=4, prefix_caching=False)
    bench.add(*(request(name, 12, max_tokens=40) for name in "abc"))
    bench.step()
    assert bench.cache.num_free == 0
    return bench


def test_the_youngest_gives_way_to_the_oldest():
    bench = crowded()
    plan = bench.plan()
    assert counts(plan) == {"a": 1, "b": 1}
    assert bench.scheduler.num_preemptions == 1
    assert bench.scheduler.num_waiting == 1


@pytest.mark.parametrize(("high", "left"), [(0.0, "abc"), (0.2, "abc"), (0.3, "ab")])
def test_a_preemption_goes_on_to_the_high_watermark(high, left):
    """Forty pages, all taken by four prompts of ten; the oldest then needs one more."""
    bench = Bench(num_pages=41, page_size=4, budget=160, low_watermark=0.0, high_watermark=high)
    bench.add(*(request(name, 40) for name in "abcd"))
    assert set(counts(bench.step()[0])) == set("abcd")
    assert bench.cache.num_free == 0
    assert set(counts(bench.step()[0])) == set(left)
    lost = 4 - len(left)
    assert (bench.scheduler.num_preemptions, bench.scheduler.num_lost_tokens) == (lost, 40 * lost)


def test_nothing_is_admitted_in_a_step_that_preempted():
    bench = crowded()
    bench.add(request("d", 1))
    assert bench.cache.pages_for(1) == 1
    assert counts(bench.step()[0]) == {"a": 1, "b": 1}
    assert bench.cache.num_free == 1, "d would have fitted"


def test_a_sequence_that_preempted_itself_waits_for_its_token():
    """Without its token, which is still on the device, it would fit again at once."""
    bench = Bench(num_pages=6, budget=64, prefix_caching=False)
    bench.add(request("a", 8), request("b", 8))
    bench.plan()
    plan = planned(bench)
    assert bench.cache.num_free == bench.cache.pages_for(8)
    assert counts(plan) == {"a": 1}


def test_a_preempted_sequence_comes_back_first():
    bench = crowded()
    bench.add(request("d", 1))
    bench.step()
    assert "d" not in counts(bench.step()[0]), "c is first in the queue and does not fit yet"
    bench.scheduler.abort(["a"])
    plan, _ = bench.step()
    assert counts(plan) == {"b": 1, "c": 13, "d": 1}, "c computes its prompt and its first token again"


def test_what_is_told_of_a_start_is_of_the_first_one():
    bench = Bench(num_pages=10, budget=64, prefix_caching=True)
    bench.add(*(request(name, 12, max_tokens=10) for name in "abc"))
    bench.step()
    bench.clock.advance(5.0)
    bench.step()
    bench.scheduler.abort(["a"])
    plan, updates = bench.step()
    assert counts(plan)["c"] < 13, "c finds pages of its own"
    assert [(update.id, update.num_cached, update.queue_time) for update in updates] == [("b", 0, 0.0), ("c", 0, 0.0)]


def test_a_sequence_may_preempt_itself():
    bench = Bench(num_pages=7, budget=64, prefix_caching=False)
    bench.add(request("a", 8, max_tokens=40), request("b", 16, max_tokens=40))
    bench.step()
    assert counts(bench.step()[0]) == {"a": 1}, "b is the youngest, whoever needs the page"
    bench = Bench(num_pages=8, budget=64, prefix_caching=False)
    bench.add(request("a", 9, max_tokens=40), request("b", 16, max_tokens=40))
    bench.step()
    assert counts(bench.step()[0]) == {"a": 1}, "only b needs a page, and it is the youngest"
    assert bench.scheduler.num_preemptions == 1


def test_admission_leaves_the_watermark_free():
    bench = Bench(num_pages=301, budget=1300, max_num_seqs=8, prefix_caching=False)
    assert bench.cache.num_usable == 300  # a hundredth is 3 pages
    bench.add(request("a", 390), request("b", 390))
    bench.step()
    assert bench.cache.num_free == 104
    bench.add(request("c", 380), request("d", 28), request("e", 1))
    assert counts(bench.step()[0]).keys() == {"a", "b", "c"}, "d would leave 2 pages"
    bench.scheduler.abort(["d"])
    assert counts(bench.step()[0]).keys() == {"a", "b", "c", "e"}


def test_admission_leaves_what_running_prompts_still_need():
    """Two prompts of ten pages in chunks of one page, and fifteen pages: together they would preempt each other."""
    bench = Bench(num_pages=16, page_size=4, budget=16, low_watermark=0.0, long_prefill_token_threshold=4)
    bench.add(request("a", 40, max_tokens=2), request("b", 40, max_tokens=2))
    for _ in range(10):
        assert set(counts(bench.step()[0])) == {"a"}
    while bench.scheduler.has_work:
        bench.step()
    assert bench.scheduler.num_preemptions == 0


def test_the_watermark_does_not_keep_out_the_only_sequence():
    bench = Bench(num_pages=101, budget=400)
    bench.add(request("a", 399))
    assert counts(planned(bench)) == {"a": 399}


# The queue


def test_a_full_queue_takes_all_sequences_of_a_request_or_none():
    bench = Bench(max_waiting=4)
    bench.scheduler.add([request("a0", 2), request("a1", 2)])
    assert bench.scheduler.has_room([request("b", 2)] * 2)
    assert not bench.scheduler.has_room([request("b", 2)] * 3)
    with pytest.raises(QueueFullError, match="max_waiting is 4") as refused:
        bench.scheduler.add([request("b0", 2), request("b1", 2), request("b2", 2)])
    assert (refused.value.retry_after or 0) > 0
    assert bench.scheduler.num_waiting == 2
    assert bench.scheduler.abort(["b0", "b1", "b2"]) == []
    bench.scheduler.add([request("c0", 2), request("c1", 2)])
    assert counts(bench.step()[0]).keys() == {"a0", "a1", "c0", "c1"}


def test_preempted_sequences_come_back_even_to_a_full_queue():
    bench = Bench(num_pages=10, budget=64, max_num_seqs=4, prefix_caching=False, max_waiting=3)
    bench.add(*(request(name, 12, max_tokens=3) for name in "abc"))
    bench.step()
    bench.add(*(request(name, 12, max_tokens=3) for name in "def"))
    bench.step()
    assert bench.scheduler.num_waiting == 4
    assert not bench.scheduler.has_room([request("g", 2)])
    finished = []
    while bench.scheduler.has_work:
        finished += [update.id for update in bench.step()[1] if update.finish_reason]
    assert sorted(finished) == list("abcdef")


def test_time_in_the_queue():
    bench = Bench(max_num_seqs=1)
    bench.add(request("a", 2, max_tokens=2), request("b", 2, max_tokens=1))
    bench.clock.advance(1.5)
    bench.step()
    bench.clock.advance(2.0)
    times = [update.queue_time for _ in range(2) for update in bench.step()[1]]
    assert times == [1.5, 3.5]


def test_abort_passes_over_what_it_does_not_know():
    bench = Bench()
    bench.add(request("a", 4), request("b", 4))
    bench.step()
    bench.add(request("c", 4))
    assert bench.scheduler.abort(["x", "a", "a", "c"]) == ["a", "c"]
    bench.scheduler.check()
    assert counts(bench.step()[0]) == {"b": 1}


# Plans


def arrays(plan):
    names = ("slots", "tokens", "query_start", "kv_length", "page_table", "samples", "sampling")
    return {name: getattr(plan, name) for name in names}


def option(plan, name):
    return STANDARD.column(plan.sampling, name).tolist()


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_a_plan_keeps_its_values_while_the_scheduler_goes_on(names):
    bench = Bench(budget=64, max_num_seqs=len(names))  # with all slots in order, a slice would be a view
    bench.add(*(request(name, 6, temperature=0.5, top_k=3, min_tokens=4, stop_token_ids=(5,), logprobs=2) for name in names))
    plan, _ = bench.step()
    before = {name: value.copy() for name, value in arrays(plan).items()}
    bench.scheduler.abort(names)
    bench.add(*(request(name.upper(), 30, temperature=1.5, top_k=9, seed=3) for name in names))
    for _ in range(3):
        bench.step()
    for name, value in arrays(plan).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_two_plans_share_no_memory_that_anyone_could_write_to():
    bench = Bench()
    bench.add(request("a", 6))
    first, second = arrays(bench.step()[0]), arrays(bench.step()[0])
    shared = {name for name in first if np.shares_memory(first[name], second[name])}
    assert shared == {"slots", "page_table", "sampling"}
    assert not any(first[name].flags.writeable for name in shared)


def test_sampling_rows_hold_the_requests_parameters():
    bench = Bench()
    params: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": -1,
        "top_p": 0.25,
        "min_p": 0.125,
        "presence_penalty": 1.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.25,
        "logprobs": 3,
    }
    bench.add(request("a", 2), request("b", 2, **params), request("c", 2, logit_bias={3: 1.0}))
    plan, _ = bench.step()
    assert option(plan, "temperature") == [0.0, 0.5, 0.0]
    assert option(plan, "top_k") == [0, 0, 0], "-1 means all, as 0 does"
    assert option(plan, "top_p") == [1.0, 0.25, 1.0]
    assert option(plan, "min_p") == [0.0, 0.125, 0.0]
    assert option(plan, "presence") == [0.0, 1.5, 0.0]
    assert option(plan, "frequency") == [0.0, -0.5, 0.0]
    assert option(plan, "repetition") == [1.0, 1.25, 1.0]
    assert option(plan, "num_logprobs") == [-1, 3, -1]
    assert option(plan, "has_bias") == [False, False, True]
    assert option(plan, "key") == [[0, 7]] * 3


def test_a_slot_used_again_keeps_nothing_of_its_last_sequence():
    bench = Bench(max_num_seqs=1, budget=64)
    bench.add(request("a", 30, max_tokens=1, logprobs=2, min_tokens=1, stop_token_ids=(1, 2, 3), allowed_token_ids=(4,)))
    bench.step()
    bench.add(request("b", 2, min_tokens=1, stop_token_ids=(9,)))
    plan, _ = bench.step()
    assert plan.page_table.shape == (1, 1)
    assert option(plan, "suppress") == [[9] + [-1] * (SUPPRESS_WIDTH - 1)]
    assert option(plan, "num_logprobs") == [-1]
    assert option(plan, "has_bias") == [False]


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_min_tokens_suppresses_every_stop_until_then(ignore_eos):
    bench = Bench(budget=4)
    bench.add(request("a", 6, max_tokens=6, eos=(EOS,), stop_token_ids=(5, 3), min_tokens=2, ignore_eos=ignore_eos))
    wanted = {3, 5} if ignore_eos else {3, 5, EOS}
    seen = []
    while bench.scheduler.has_work:
        plan = planned(bench)
        if plan.samples[0]:
            seen.append(set(option(plan, "suppress")[0]) - {-1})
        bench.scheduler.apply(plan, StepResult.of_rows(plan, np.array([8], np.int32)))
    assert seen == [wanted, wanted, set(), set(), set(), set()]


def test_all_stop_tokens_that_a_request_may_name_are_suppressed():
    bench = Bench()
    stops = tuple(range(MAX_STOP_TOKEN_IDS))
    bench.add(request("a", 2, stop_token_ids=stops, eos=range(40, 48), min_tokens=1))
    assert set(option(bench.plan(), "suppress")[0]) - {-1} == {*stops, *range(40, 48)}


@pytest.mark.parametrize(
    ("token", "params", "reason", "matched"),
    [
        (EOS, {}, FinishReason.STOP, None),
        (EOS, {"ignore_eos": True}, None, None),
        (EOS, {"stop_token_ids": (EOS,)}, FinishReason.STOP, EOS),
        (EOS, {"stop_token_ids": (EOS,), "ignore_eos": True}, FinishReason.STOP, EOS),
        (5, {"stop_token_ids": (5,)}, FinishReason.STOP, 5),
        (5, {"stop_token_ids": (5,), "min_tokens": 1}, None, None),
        (5, {}, None, None),
    ],
)
def test_what_a_token_ends(token, params, reason, matched):
    bench = Bench()
    bench.add(request("a", 2, eos=(EOS,), **params))
    plan = planned(bench)
    (update,) = bench.scheduler.apply(plan, StepResult.of_rows(plan, np.array([token], np.int32)))
    assert (update.token, update.finish_reason, update.matched) == (token, reason, matched)
    assert bench.scheduler.has_work == (reason is None)


# Overlapping steps


def test_without_overlap_every_input_token_is_known():
    bench = Bench()
    bench.add(request("a", 5), request("b", 5))
    for _ in range(4):
        assert (bench.step()[0].tokens >= 0).all()


def test_with_overlap_the_last_token_is_named_by_its_slot():
    bench = Bench(budget=64)
    bench.add(request("a", 5), request("b", 3))
    first = planned(bench)
    handle = bench.executor.submit(first)
    second = planned(bench)
    assert second.tokens.tolist() == [-1 - slot for slot in second.slots]
    assert second.kv_length.tolist() == [6, 4]
    bench.scheduler.apply(first, handle.result())
    handle = bench.executor.submit(second)
    third = planned(bench)
    assert third.tokens.tolist() == [-1 - slot for slot in third.slots]
    updates = bench.scheduler.apply(second, handle.result())
    assert [update.id for update in updates] == ["a", "b"]


def test_with_overlap_the_last_token_of_a_sequence_is_not_computed():
    bench = Bench()
    bench.add(request("a", 5, max_tokens=2))
    first = planned(bench)
    handle = bench.executor.submit(first)
    second = planned(bench)
    bench.scheduler.apply(first, handle.result())
    assert bench.plan() is None, "both tokens are on their way"
    (update,) = bench.scheduler.apply(second, bench.executor.submit(second).result())
    assert update.finish_reason is FinishReason.LENGTH


def test_a_token_of_a_sequence_that_ended_meanwhile_is_discarded():
    bench = Bench()
    bench.add(request("a", 5, stop_token_ids=(9,)), request("b", 5))
    first, second = planned(bench), planned(bench)
    updates = bench.scheduler.apply(first, StepResult.of_rows(first, np.array([9, 8], np.int32)))
    assert [update.finish_reason for update in updates] == [FinishReason.STOP, None]
    updates = bench.scheduler.apply(second, StepResult.of_rows(second, np.array([7, 7], np.int32)))
    assert [update.id for update in updates] == ["b"]
    bench.scheduler.check()


# State of the sampler's slots


def test_only_requests_with_state_load_a_slot_once():
    bench = Bench(budget=8)
    bench.add(request("a", 12, repetition_penalty=1.5), request("b", 2))
    plans = [bench.step()[0] for _ in range(3)]
    assert [len(plan.starts) for plan in plans] == [0, 1, 0], "before its first sample"
    (start,) = plans[1].starts
    assert start.slot == plans[1].slots[row(plans[1], "a")]
    assert (len(start.prompt), start.output) == (12, ())


@pytest.mark.parametrize(
    "params",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"logit_bias": {3: 2.0}},
        {"allowed_token_ids": (3, 4)},
    ],
)
def test_what_needs_state(params):
    bench = Bench()
    bench.add(request("a", 2, **params))
    (start,) = bench.step()[0].starts
    assert start.logit_bias == params.get("logit_bias", {})
    assert start.allowed == params.get("allowed_token_ids")


def test_a_preempted_sequence_loads_its_slot_again_with_its_output():
    bench = Bench(num_pages=10, budget=64, max_num_seqs=4, prefix_caching=False)
    bench.add(*(request(name, 12, max_tokens=40, presence_penalty=1.0) for name in "abc"))
    plan, updates = bench.step()
    assert len(plan.starts) == 3
    bench.step()
    bench.scheduler.abort(["a"])
    plan, _ = bench.step()
    assert counts(plan)["c"] == 13
    (start,) = plan.starts
    assert start.slot == plan.slots[row(plan, "c")]
    assert start.prompt == request("c", 12).prompt
    assert start.output == (updates[2].token,)


# Prompt log-probabilities


def scored(plan, name):
    """Prompt positions scored for a sequence by a plan: position -> the token expected there."""
    found: dict[int, int] = {}
    for score in plan.readouts:
        if plan.ids[score.row] == name and score.values:
            start = int(plan.kv_length[score.row]) - counts(plan)[name] + score.offset
            assert score.offset >= 0
            assert score.offset + len(score.values) <= counts(plan)[name]
            found |= {start + 1 + index: token for index, token in enumerate(score.values)}
    return found


def no_scores(count):
    tops = np.zeros((count, 0), np.int32)
    return LogprobRows(np.zeros(count, np.float32), np.zeros(count, np.int32), tops, tops.view(np.float32))


def scores_of(bench, name):
    """Run to the end; every position scored, and a failure if one is scored twice."""
    seen: dict[int, int] = {}
    while bench.scheduler.has_work:
        plan = bench.plan()
        new = scored(plan, name)
        assert not new.keys() & seen.keys()
        seen |= new
        rows = tuple(Reading(no_scores(len(score.values))) for score in plan.readouts)
        result = bench.executor.submit(plan).result()
        bench.scheduler.apply(plan, replace(result, readings=rows))
        bench.scheduler.check()
    return seen


@pytest.mark.parametrize("budget", [4, 5, 7, 13, 64])
@pytest.mark.parametrize("length", [1, 2, 13, 14])
def test_every_prompt_position_is_scored_once(length, budget):
    bench = Bench(budget=budget)
    prompt = list(range(10, 10 + length))
    bench.add(request("warm", prompt, max_tokens=1))
    bench.step()
    bench.add(request("a", prompt, prompt_logprobs=0), request("b", range(9)))
    assert scores_of(bench, "a") == dict(enumerate(prompt[1:], 1))


@pytest.mark.parametrize("start", [0, 3, 11])
@pytest.mark.parametrize("ahead", [5, 6, 7, 8])  # after it, chunks begin elsewhere than before, or not
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_scoring_goes_on_after_a_preemption(ahead, start, prefix_caching):
    bench = Bench(num_pages=11, budget=6, max_num_seqs=4, prefix_caching=prefix_caching)
    prompt = list(range(30))
    scoring = {"prompt_logprobs": 2, "prompt_logprobs_start": start}
    bench.add(request("a", ahead, max_tokens=28), request("b", prompt, max_tokens=2, **scoring))
    first = max(1, start)
    assert scores_of(bench, "b") == dict(enumerate(prompt[first:], first))
    lost = [event.tokens_lost for event in bench.preemptions]
    assert len(lost) == 1
    assert 0 < lost[0] < len(prompt), "preempted while it was scored"
    computed = sum(counts(plan).get("b", 0) for plan in bench.executor.plans)
    again = computed - (len(prompt) + 1)
    assert again == lost[0] if not prefix_caching else again < lost[0], "what was scored may come from the cache"


@pytest.mark.parametrize(("start", "computed"), [(0, 20), (1, 20), (4, 20), (5, 16), (8, 16), (9, 12), (17, 4), (19, 4)])
def test_what_comes_before_the_scores_may_come_from_the_cache(start, computed):
    bench = Bench(budget=64)
    bench.add(request("warm", range(20), max_tokens=1))
    bench.step()
    bench.add(request("a", range(20), prompt_logprobs=1, prompt_logprobs_start=start), request("b", range(20)))
    plan = planned(bench)
    assert counts(plan) == {"a": computed, "b": 4}
    assert scored(plan, "a") == {place: place for place in range(max(1, start), 20)}


@pytest.mark.parametrize("budget", [4, 5, 64])
@pytest.mark.parametrize("start", [0, 9])
def test_a_prompt_that_is_only_scored_takes_no_step_more(start, budget):
    """Its last token is not computed, also where it is the one that the cache could not hold."""
    bench = Bench(budget=budget, max_len=20, num_pages=6)
    prompt = request("a", range(21), max_tokens=0, task="score", prompt_logprobs=0, prompt_logprobs_start=start)
    bench.add(prompt)
    for _ in range(-(-20 // budget)):
        _, updates = bench.step()
    assert [(update.token, update.finish_reason) for update in updates] == [(None, FinishReason.LENGTH)]
    assert not bench.scheduler.has_work
    assert bench.scheduler.lengths.actual_tokens == 0
    assert bench.scheduler.lengths.expected(request("b", 4)) > 0, "outputs are not expected to be empty because of it"
    assert bench.executor.plans[-1].readouts[-1].values[-1] == 20
    bench.add(prompt)
    assert counts(planned(bench))["a"] == min(budget, 20 if start == 0 else 12), "up to its start it is in the cache"


def test_a_prompt_of_which_nothing_is_to_be_read_ends_too():
    bench = Bench(budget=8)
    bench.add(request("a", range(11), max_tokens=0, task="score", prompt_logprobs=0, prompt_logprobs_start=30))
    updates = [update for _ in range(2) for update in bench.step()[1]]
    assert [(update.token, update.prompt_logprobs, update.finish_reason) for update in updates] == [
        (None, None, FinishReason.LENGTH)
    ]
    assert not bench.scheduler.has_work


def test_continuations_of_one_context_compute_it_once():
    bench = Bench(budget=64, max_num_seqs=4)
    scoring: dict[str, Any] = {"task": "score", "max_tokens": 0, "prompt_logprobs": 0, "prompt_logprobs_start": 17}
    bench.add(*(request(name, [*range(17), 30 + index, 40 + index], **scoring) for index, name in enumerate("abcd")))
    assert bench.rows() == {"a": 18, "b": 2, "c": 2, "d": 2}
