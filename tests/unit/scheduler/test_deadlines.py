"""Requests that start or end too late end with an error, at once, and release all they hold."""

import math

import pytest

from jaxserve.cache.swap import SwapSpace
from jaxserve.errors import DeadlineError
from jaxserve.scheduler.admission import SMALLEST
from tests.support.bench import Bench, family, request


def occupied(**settings):
    """One slot, and a sequence that has it for long."""
    bench = Bench(**({"max_num_seqs": 1} | settings))
    bench.add(request("running", 4, 200))
    bench.step()
    return bench


def failed(bench):
    return {name: update.error for name, update in bench.ended.items() if update.error is not None}


def test_a_request_that_did_not_start_in_time_is_dropped_before_its_prefill():
    bench = occupied()
    bench.add(request("late", 4, arrival=0.0, queue_deadline=5.0))
    bench.clock.advance(4.9)
    bench.step()
    assert not bench.ended
    bench.clock.advance(0.1)
    plan, _ = bench.step()
    assert plan.ids == ("running",)
    assert isinstance(failed(bench)["late"], DeadlineError)
    assert "waited 5.0 s" in str(failed(bench)["late"])
    assert failed(bench)["late"].retry_after >= 1.0
    assert (bench.scheduler.num_waiting, set(bench.scheduler.sequences)) == (0, {"running"})
    bench.scheduler.abort(["running"])
    assert bench.plan() is None
    assert not any("late" in plan.ids for plan in bench.executor.plans)


def test_a_request_that_is_too_late_does_not_start_even_if_it_could():
    bench = Bench()
    bench.add(request("late", 4, queue_deadline=5.0))
    bench.clock.advance(5.0)
    assert bench.plan() is None
    assert failed(bench).keys() == {"late"}


def test_a_request_that_started_in_time_goes_on():
    bench = Bench()
    bench.add(request("a", 4, 3, queue_deadline=5.0))
    bench.run(10, seconds=4.0)
    assert not failed(bench)
    assert len(bench.tokens["a"]) == 3


def test_a_preempted_request_may_wait_longer_than_its_queue_timeout():
    bench = Bench(num_pages=7, budget=64, prefix_caching=False)
    bench.add(request("a", 12, 8), request("b", 12, 8, queue_deadline=5.0))
    bench.run(2)
    assert [event.id for event in bench.preemptions] == ["b"]
    bench.clock.advance(100.0)
    bench.run(40)
    assert not failed(bench)
    assert len(bench.tokens["b"]) == 8


def test_all_sequences_of_a_request_are_dropped_together():
    bench = occupied()
    bench.scheduler.add(family("late", 3, 4, queue_deadline=5.0))
    bench.clock.advance(6.0)
    bench.step()
    assert failed(bench).keys() == {"late0", "late1", "late2"}
    assert bench.scheduler.num_waiting == 0


def test_a_sibling_that_takes_the_place_of_the_first_has_its_deadline():
    bench = occupied()
    bench.scheduler.add(family("late", 3, 4, queue_deadline=5.0))
    bench.scheduler.abort(["late0"])
    bench.clock.advance(5.0)
    bench.step()
    assert failed(bench).keys() == {"late1", "late2"}


def test_siblings_of_a_request_that_started_in_time_may_wait_longer():
    bench = Bench(max_num_seqs=1)
    bench.scheduler.add(family("s", 2, 4, 3, queue_deadline=5.0))
    bench.run(10, seconds=4.0)
    assert not failed(bench)
    assert len(bench.tokens["s1"]) == 3


def test_finished_requests_are_not_kept_until_their_deadline():
    bench = Bench()
    for number in range(300):
        bench.add(request(f"a{number}", 4, 1, deadline=1e6, queue_deadline=1e6))
        bench.step()
    for heap in (bench.scheduler._starts, bench.scheduler._ends):
        assert len(heap._heap) <= 2 * SMALLEST


def test_only_those_that_are_late_are_dropped_and_in_order():
    bench = occupied()
    bench.add(*(request(f"late{seconds}", 4, queue_deadline=seconds) for seconds in (3, 1, 2, 4)))
    bench.clock.advance(3.0)
    bench.step()
    assert list(failed(bench)) == ["late1", "late2", "late3"]


def test_a_request_aborted_before_its_deadline_is_not_told_of_again():
    bench = occupied()
    bench.add(request("late", 4, queue_deadline=5.0, deadline=6.0))
    bench.scheduler.abort(["late"])
    bench.clock.advance(10.0)
    bench.step()
    assert not bench.ended


@pytest.mark.parametrize("steps", [1, 2, 4], ids=["computes its prompt", "has computed it", "decodes"])
def test_a_running_request_ends_at_its_deadline(steps):
    bench = Bench(budget=8)
    bench.add(request("late", 16, 100, deadline=10.0), request("other", 4, 12))
    bench.run(steps)
    bench.clock.advance(10.0)
    plan = bench.plan()
    assert plan is not None
    assert "late" not in plan.ids
    assert "took 10.0 s" in str(failed(bench)["late"])
    assert "late" not in bench.scheduler.sequences
    bench.scheduler.apply(plan, bench.executor.submit(plan).result())
    bench.run(40)
    assert len(bench.tokens["other"]) > 8
    assert bench.cache.num_free == bench.cache.num_usable


def test_what_a_step_in_flight_gives_a_request_that_ended_is_discarded():
    bench = Bench()
    bench.add(request("late", 4, 100, deadline=10.0))
    plan = bench.plan()
    assert plan is not None
    bench.clock.advance(10.0)
    assert bench.plan() is None
    assert bench.scheduler.apply(plan, bench.executor.submit(plan).result()) == []


@pytest.mark.parametrize("places", [0, 40])
def test_a_preempted_request_ends_at_its_deadline(places):
    swap = SwapSpace(places, 0.0) if places else None
    bench = Bench(num_pages=7, budget=64, prefix_caching=False, swap=swap, swap_slots=places)
    bench.add(request("a", 12, 12), request("late", 12, 12, deadline=5.0))
    bench.run(2, seconds=0.01)
    assert [(event.id, event.swapped) for event in bench.preemptions] == [("late", bool(places))]
    bench.clock.advance(5.0)
    bench.step()
    assert failed(bench).keys() == {"late"}
    assert swap is None or swap.num_free == places
    bench.run(40)
    assert bench.cache.num_free == bench.cache.num_usable


def test_a_waiting_request_ends_at_its_deadline():
    bench = occupied()
    bench.scheduler.add(family("late", 2, 4, deadline=5.0))
    bench.clock.advance(5.0)
    bench.step()
    assert failed(bench).keys() == {"late0", "late1"}
    assert bench.scheduler.num_waiting == 0


def test_ends_are_told_once_and_are_work_until_then():
    bench = Bench()
    bench.scheduler.add([request("late", 4, queue_deadline=1.0)])
    bench.clock.advance(2.0)
    assert bench.scheduler.schedule() is None
    assert bench.scheduler.has_work
    assert [update.id for update in bench.scheduler.take_ended()] == ["late"]
    assert bench.scheduler.take_ended() == []
    assert not bench.scheduler.has_work


def test_without_deadlines_a_request_waits_for_any_time():
    bench = occupied()
    bench.add(request("patient", 4, queue_deadline=math.inf, deadline=math.inf))
    bench.clock.advance(1e9)
    bench.step()
    assert "patient" in bench.scheduler.sequences
