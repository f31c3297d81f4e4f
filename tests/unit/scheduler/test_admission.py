"""Who may join the queue, and when a request that is refused may come back."""

import math

import pytest

from jaxserve.config.policies import Policies, TenantPolicy
from jaxserve.errors import OverloadedError, QueueFullError
from tests.support.bench import BATCH, FREE, PAID, Bench, family, request


def busy(**settings):
    """One slot, taken for long; a prompt token is the only work, and 100 of it are done in a second."""
    settings = {"max_num_seqs": 1, "budget": 16, "prefix_caching": False, "decode_price": 0.0, "prefill_price": 1.0} | settings
    bench = Bench(**settings)
    bench.add(request("running", 380, 1))
    bench.add(request("waiting", 100, 1))
    bench.run(10, seconds=0.16)
    return bench


def seconds_to_start(bench, **more):
    return bench.scheduler._bounds.seconds_to_start(request("r", 10, **more))


def test_a_queue_takes_as_many_sequences_as_it_may():
    bench = Bench(max_waiting=2)
    bench.add(request("a", 4), request("b", 4))
    with pytest.raises(QueueFullError, match="max_waiting is 2 sequences"):
        bench.add(request("c", 4))
    assert bench.scheduler.num_waiting == 2
    bench.step()
    bench.add(request("c", 4))


def test_a_queue_takes_as_many_tokens_as_it_may():
    bench = Bench(max_waiting_tokens=50)
    bench.add(request("a", 30))
    with pytest.raises(QueueFullError, match="max_waiting_tokens 50 tokens"):
        bench.add(request("b", 21))
    bench.add(request("c", 20))


def test_an_empty_queue_takes_any_prompt():
    bench = Bench(max_waiting_tokens=50)
    bench.add(request("a", 300))
    assert bench.scheduler.num_waiting == 1


def test_tokens_leave_the_queue_with_their_sequence():
    bench = Bench(max_waiting_tokens=50)
    bench.add(request("a", 30), request("b", 20))
    assert bench.scheduler.abort(["a"]) == ["a"]
    bench.add(request("c", 30))
    bench.run(100)
    assert bench.scheduler._waiting.num_tokens == 0


def test_a_full_queue_tells_when_half_of_it_is_done():
    bench = busy(max_waiting=2)
    bench.add(request("second", 300, 1))
    with pytest.raises(QueueFullError) as refused:
        bench.add(request("third", 10))
    assert refused.value.retry_after == pytest.approx(2.0), "400 tokens wait, at 100 a second"


def test_nobody_is_asked_back_within_a_second():
    bench = Bench(max_waiting=1)
    bench.add(request("a", 4))
    with pytest.raises(QueueFullError) as refused:
        bench.add(request("b", 4))
    assert refused.value.retry_after == 1.0


@pytest.mark.parametrize(("seconds", "taken"), [(0.9, False), (1.1, True), (math.inf, True)])
def test_a_request_that_would_start_too_late_is_refused_at_once(seconds, taken):
    """100 tokens wait before it, at 100 a second."""
    bench = busy()
    late = request("late", 10, queue_deadline=bench.clock.now() + seconds)
    if taken:
        bench.add(late)
    else:
        with pytest.raises(OverloadedError, match=r"^queue_timeout leaves 0\.9 s, but .* wait about 1\.0 s") as refused:
            bench.add(late)
        assert refused.value.retry_after == 1.0
    assert ("late" in bench.scheduler.sequences) == taken


def test_what_is_too_late_comes_back_when_it_would_be_in_time():
    bench = busy()
    bench.add(request("second", 300, 1))
    with pytest.raises(OverloadedError) as refused:
        bench.add(request("late", 10, queue_deadline=bench.clock.now() + 0.5))
    assert refused.value.retry_after == pytest.approx(3.5)


def test_a_refused_request_leaves_nothing_behind():
    bench = busy()
    with pytest.raises(OverloadedError):
        bench.scheduler.add(family("late", 3, 10, queue_deadline=bench.clock.now() + 0.5))
    bench.scheduler.check()
    assert bench.scheduler.sequences.keys() == {"running", "waiting"}
    assert bench.scheduler._work.active == {"": 2}


def test_nobody_is_refused_before_anything_was_measured():
    bench = Bench(max_num_seqs=1)
    bench.add(request("a", 4), request("b", 4))
    bench.step()
    bench.add(request("c", 4, queue_deadline=0.001))
    assert "c" in bench.scheduler.sequences


def test_nobody_is_refused_while_nobody_waits():
    bench = busy()
    bench.scheduler.abort(["waiting"])
    bench.add(request("a", 4, queue_deadline=bench.clock.now() + 0.001))
    assert "a" in bench.scheduler.sequences


def test_the_rate_is_that_of_the_last_ten_seconds():
    bench = busy()
    for _ in range(300):
        bench.scheduler._shedding.estimate.observe(5.0, 0.1)
    assert seconds_to_start(bench) == pytest.approx(2.0, rel=0.07)


@pytest.mark.parametrize("pause", [10.0, 1e9])
def test_a_pause_of_the_machine_does_not_make_it_look_slow(pause):
    bench = busy()
    bench.scheduler._shedding.estimate.observe(0.0, pause)
    assert 1.0 < seconds_to_start(bench) < 1.5


def test_higher_classes_come_before_and_lower_ones_do_not():
    bench = busy()
    bench.add(request("free", 200, 1, service_class=FREE), request("batch", 400, 1, service_class=BATCH))
    waits = [seconds_to_start(bench, service_class=service_class) for service_class in (PAID, FREE, BATCH)]
    assert waits == pytest.approx([1.0, 3.0, 7.0])


def test_another_tenants_queue_delays_no_more_than_ones_own_share():
    bench = busy()
    bench.add(request("b", 50, 1, tenant="b"))
    assert seconds_to_start(bench, tenant="new") == 0.0, "it is next"
    assert seconds_to_start(bench, tenant="b") == pytest.approx(1.0), "twice its own 50 tokens"
    assert seconds_to_start(bench, tenant="") == pytest.approx(1.5), "never more than all of the class"


def test_expected_outputs_are_work_too():
    bench = busy(decode_price=2.0)
    before = bench.scheduler._waiting.work_ahead("", PAID)
    bench.add(request("second", 10, 30))
    assert bench.scheduler._waiting.work_ahead("", PAID) - before == 10 + 2 * 30


# A queue that one tenant filled


def test_a_tenant_with_less_in_a_full_queue_displaces_the_newest_of_the_one_with_most():
    bench = Bench(max_num_seqs=1, max_waiting=4)
    bench.add(request("running", 4, 50, tenant="heavy"))
    bench.step()
    bench.add(*(request(f"heavy{number}", 4, tenant="heavy") for number in range(4)))
    bench.add(request("light0", 4, tenant="light"), request("light1", 4, tenant="light"))
    ended = bench.scheduler.take_ended()
    assert [update.id for update in ended] == ["heavy3", "heavy2"], "until both have as much"
    assert all(isinstance(update.error, OverloadedError) and (update.error.retry_after or 0) > 0 for update in ended)
    with pytest.raises(QueueFullError):
        bench.add(request("light2", 4, tenant="light"))
    with pytest.raises(QueueFullError):
        bench.add(request("heavy4", 4, tenant="heavy"))
    assert set(bench.scheduler.sequences) == {"running", "heavy0", "heavy1", "light0", "light1"}
    bench.scheduler.check()


def test_a_tenant_with_more_weight_may_have_more_of_a_full_queue():
    bench = Bench(max_num_seqs=1, max_waiting=4, policies=Policies(tenants={"paying": TenantPolicy(weight=3)}))
    bench.add(request("running", 4, 50))
    bench.step()
    bench.add(*(request(f"other{number}", 4, tenant="other") for number in range(4)))
    bench.add(*(request(f"paying{number}", 4, tenant="paying") for number in range(3)))
    with pytest.raises(QueueFullError):
        bench.add(request("paying3", 4, tenant="paying"))
    assert [update.id for update in bench.scheduler.take_ended()] == ["other3", "other2", "other1"]


def test_whole_requests_are_displaced_and_never_those_that_have_started():
    bench = Bench(num_pages=10, max_num_seqs=4, budget=64, prefix_caching=False, max_waiting=4)
    bench.add(*(request(name, 12, 40, tenant="heavy") for name in "abc"))
    bench.step()
    bench.step()
    assert bench.scheduler.num_waiting == 1, "c was preempted"
    bench.scheduler.add(family("family", 3, 4, tenant="heavy"))
    bench.add(request("light", 4, tenant="light"))
    assert {update.id for update in bench.scheduler.take_ended()} == {"family0", "family1", "family2"}
    bench.scheduler.check()


def test_the_rest_of_a_request_whose_first_sequence_ran_and_ended_is_not_displaced():
    bench = Bench(max_num_seqs=1, budget=16, prefix_caching=False, max_waiting=4)
    bench.scheduler.add(family("family", 4, 40, tenant="heavy"))
    bench.step()
    assert bench.scheduler.abort(["family0"]) == ["family0"], "its stop string came"
    bench.add(request("fourth", 4, tenant="heavy"))
    bench.add(request("light", 4, tenant="light"))
    assert [update.id for update in bench.scheduler.take_ended()] == ["fourth"]
    with pytest.raises(QueueFullError):
        bench.add(request("light1", 4, tenant="light"))
    assert bench.scheduler.take_ended() == []
    bench.scheduler.check()
