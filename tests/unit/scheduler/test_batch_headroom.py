"""What batch leaves to interactive requests."""

from typing import Any

import pytest

from jaxserve.config.fields import SchedulerConfig
from jaxserve.scheduler.step_budget import LATELY_SECONDS, BatchHeadroom, StepBudget
from tests.support.bench import BATCH, Bench, family, request

MILLISECONDS = {128: 138, 64: 74, 32: 42, 16: 26}  # 10, and one a token


def timed(*, budget: int = 128, itl_target_ms: float = 80.0, **settings: Any) -> Bench:
    """A bench whose steps have been timed: half of its target is a step of 16 tokens, all of it one of 64."""
    bench = Bench(budget=budget, itl_target_ms=itl_target_ms, prefix_caching=False, num_pages=801, **settings)
    for size, milliseconds in MILLISECONDS.items():
        bench.scheduler._step_budget.observe(1, size, milliseconds / 1e3)
    return bench


def test_a_step_with_an_interactive_prompt_is_filled_up_to_the_size_it_is_padded_to():
    bench = timed()
    bench.add(request("b", 390, service_class=BATCH))
    bench.step()
    bench.add(request("a", 20))
    assert bench.rows() == {"a": 20, "b": 12}


def test_no_other_batch_prompt_takes_what_it_is_not_filled_up_with():
    bench = timed(long_prefill_token_threshold=32)
    bench.add(*(request(f"b{number}", 390, service_class=BATCH) for number in range(2)))
    assert bench.rows() == {"b0": 32, "b1": 32}
    bench.add(request("a", 20))
    assert bench.rows() == {"a": 20, "b0": 12}


def test_so_is_one_in_which_its_last_chunk_is_computed():
    bench = timed(budget=64)
    bench.add(request("a", 100), request("b", 390, service_class=BATCH))
    assert bench.run(2) == [{"a": 64}, {"a": 36, "b": 28}]


def test_a_batch_request_is_not_admitted_beyond_it_either():
    bench = timed()
    bench.add(request("a", 32), request("b", 40, service_class=BATCH))
    assert bench.rows() == {"a": 32}


def test_after_interactive_work_batch_takes_steps_that_whoever_comes_next_can_wait_for():
    bench = timed()
    bench.add(request("a", 4, 1))
    bench.step()
    bench.add(request("b", 390, service_class=BATCH))
    assert bench.rows() == {"b": 16}
    bench.clock.advance(LATELY_SECONDS)
    assert bench.rows() == {"b": 128}


def test_batch_alone_takes_whole_steps():
    bench = timed()
    bench.add(request("b", 390, service_class=BATCH))
    assert bench.rows() == {"b": 128}


def test_without_a_promise_batch_takes_what_is_left():
    bench = timed(itl_target_ms=0.0)
    bench.add(request("a", 20), request("b", 390, service_class=BATCH))
    assert bench.rows() == {"a": 20, "b": 108}


def test_batch_that_waits_does_not_make_steps_longer():
    """Prompts that wait allow more than half of the target, if they are interactive."""
    bench = timed(max_num_seqs=2)
    bench.add(request("a", 4, 100))
    bench.run(2)
    bench.add(*(request(f"b{number}", 390, service_class=BATCH) for number in range(3)))
    assert bench.rows() == {"a": 1, "b0": 15}
    assert bench.rows() == {"a": 1, "b0": 15}
    bench.add(request("c", 257))
    assert bench.rows() == {"a": 1}, "b0 makes way"
    assert bench.rows() == {"a": 1, "c": 31}


def test_batch_leaves_rows_free_for_those_who_may_come():
    bench = timed(max_num_seqs=16, budget=64)
    bench.add(request("a", 2, 1))
    bench.step()
    bench.add(*(request(f"b{number}", 1, 100, service_class=BATCH) for number in range(16)))
    bench.run(3)
    assert bench.scheduler.num_running == 14
    bench.clock.advance(LATELY_SECONDS)
    bench.step()
    assert bench.scheduler.num_running == 16


def test_siblings_that_change_their_class_are_counted_in_it():
    bench = timed()
    bench.scheduler.add(family("a", 3, 200))
    bench.step()
    waiting = bench.scheduler._waiting
    assert waiting.interactive_tokens == 400
    bench.scheduler.demote(["a0", "a1", "a2"], demoted=True)
    bench.scheduler.check()
    assert (waiting.interactive_tokens, waiting.num_tokens) == (0, 400)


@pytest.mark.parametrize(
    ("taken", "prompts", "decodes", "most"),
    [(20, True, True, 32), (20, True, False, 32), (20, False, True, 128), (4, False, False, 16), (0, True, False, 16)],
)
def test_what_a_step_is_filled_up_to(taken: int, prompts: bool, decodes: bool, most: int) -> None:
    budget = StepBudget(128, 4, 0.08)
    for size, milliseconds in MILLISECONDS.items():
        budget.observe(1, size, milliseconds / 1e3)
    headroom = BatchHeadroom(SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=128, itl_target_ms=80.0), budget)
    headroom.look(0.0, interactive=True)
    assert headroom.most_tokens(taken, prompts=prompts, decodes=decodes) == most
    headroom.look(LATELY_SECONDS, interactive=False)
    assert headroom.most_tokens(taken, prompts=prompts, decodes=decodes) == 128
