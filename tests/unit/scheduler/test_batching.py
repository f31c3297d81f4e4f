"""One step's choice where several rules meet: every row once, nothing left unused, and nobody held up for long."""

import pytest

from jaxserve.config.policies import Policies, TenantPolicy
from tests.support.bench import BATCH, FREE, Bench, request


def test_a_batch_decode_that_was_let_in_gets_one_row():
    """After eight steps without it, in a step that has tokens left and a request that waits for a slot."""
    bench = Bench(max_num_seqs=2, budget=16)
    bench.add(request("b", 4, 50, service_class=BATCH))
    bench.step()
    bench.add(request("a", 8 * 16 + 4))
    assert bench.run(8) == [{"a": 16}] * 8
    bench.add(request("c", 4))
    plan, _ = bench.step()
    assert sorted(plan.ids) == ["a", "b"]


def test_rows_that_are_in_the_step_are_not_preempted():
    """b counts as interactive_free after two preemptions and is older than f; w waits for room in between."""
    bench = Bench(max_num_seqs=3, budget=64, num_pages=21, prefix_caching=False, low_watermark=0.0, high_watermark=0.0)
    bench.add(request("b", 8, 100, service_class=BATCH))
    bench.step()
    for turn in range(2):
        bench.add(*(request(f"p{turn}{number}", 4, 2) for number in range(3)))
        while len(bench.scheduler.sequences) > 1:
            plan = bench.plan()
            if plan is not None:
                bench.scheduler.apply(plan, bench.executor.submit(plan).result())
    assert [event.id for event in bench.preemptions] == ["b", "b"]
    while len(bench.scheduler.sequences["b"].tokens) % 4:
        bench.step()
    bench.add(request("f", 4 * bench.cache.num_free - 1, 9, service_class=FREE))
    bench.step()
    bench.add(request("w", 40, 3, service_class=FREE))
    for _ in range(4):
        plan, _ = bench.step()
        assert (plan.slots >= 0).all()


def test_a_batch_prompt_goes_on_beside_lasting_interactive_prompts():
    bench = Bench(budget=16, aging_s=1.0, prefix_caching=False)
    bench.add(request("b", 100, 4, service_class=BATCH))
    steps = 0
    while "b" not in bench.ended:
        bench.add(request(f"a{steps}", 16, 1, arrival=bench.clock.now()))
        bench.step(0.05)
        steps += 1
        assert steps < 200
    assert steps > 30, "it is let in now and then only"


def test_reserves_of_those_that_cannot_start_keep_nobody_from_running():
    policies = Policies(tenants={"x": TenantPolicy(prefill_reserve=0.5), "y": TenantPolicy(prefill_reserve=0.5)})
    bench = Bench(max_num_seqs=1, policies=policies)
    bench.add(request("a", 40, tenant="a"))
    bench.step()
    bench.add(request("x", 4, tenant="x"), request("y", 4, tenant="y"))
    assert bench.rows() == {"a": 16}


def test_what_is_left_of_a_reserve_goes_to_whoever_got_nothing():
    """x waits for a slot of its quota, so its half of the step is free."""
    policies = Policies(tenants={"x": TenantPolicy(prefill_reserve=0.99, kv_share=0.05, kv_cap=0.05)})
    bench = Bench(budget=16, policies=policies)
    bench.add(request("x0", 4, 100, tenant="x"), request("a", 100, tenant="a"))
    bench.step()
    bench.add(request("x1", 17, 100, tenant="x"))
    steps = [bench.rows() for _ in range(8)]
    assert all(step.get("a") for step in steps)


def test_pins_give_way_to_a_prompt_that_nothing_else_keeps_out():
    bench = Bench(num_pages=21, budget=100, max_len=80)
    bench.add(request("warm", 20, 1))
    bench.step()
    assert bench.cache.pin(b"root", request("warm", 20).prompt) == 5
    bench.add(request("a", 76, 2))
    assert bench.rows() == {"a": 76}
    assert bench.cache.num_pinned == 0


def test_batch_that_made_way_does_not_take_its_slot_back():
    """It has run for longer than the aging of two ranks."""
    bench = Bench(max_num_seqs=1, aging_s=10.0)
    bench.add(request("b", 4, 50, service_class=BATCH))
    bench.step()
    bench.clock.advance(30.0)
    bench.add(request("a", 4, arrival=30.0))
    assert bench.plan() is None
    assert bench.rows() == {"a": 4}


def test_batch_makes_no_way_for_a_request_whose_tenant_may_not_start_it():
    policies = Policies(tenants={"x": TenantPolicy(kv_share=0.1, kv_cap=0.1)})
    bench = Bench(max_num_seqs=3, policies=policies)
    bench.add(request("x0", 30, 6, tenant="x"))
    bench.run(2)
    bench.add(*(request(name, 4, 50, service_class=BATCH) for name in "bc"))
    bench.step()
    bench.add(request("x1", 30, 6, tenant="x"))
    bench.run(3)
    assert not bench.preemptions


def test_what_batch_is_expected_to_need_keeps_no_interactive_request_waiting():
    bench = Bench(budget=256, growth_reserve=1.0, prefix_caching=False)
    bench.add(request("b", 4, 350, service_class=BATCH))
    bench.step()
    bench.add(request("a", 190, 150))
    assert bench.rows() == {"b": 1, "a": 190}


@pytest.mark.parametrize("seconds", [0.0, 30.0], ids=["young", "aged"])
def test_batch_that_has_no_room_keeps_no_interactive_request_waiting(seconds):
    bench = Bench(budget=64, prefix_caching=False)
    bench.add(request("a", 200, 200))
    bench.run(4)
    bench.add(request("b", 390, 4, service_class=BATCH))
    bench.clock.advance(seconds)
    bench.add(request("c", 4, 2, arrival=seconds))
    assert bench.rows() == {"a": 1, "c": 4}


def test_running_batch_goes_on_before_batch_that_waits():
    """A tenant at its cap has an interactive request waiting all the time."""
    policies = Policies(tenants={"x": TenantPolicy(kv_share=0.1, kv_cap=0.1)})
    bench = Bench(max_num_seqs=8, budget=16, policies=policies, prefix_caching=False)
    bench.add(request("x0", 30, 200, tenant="x"))
    bench.run(3)
    bench.add(request("x1", 30, 60, tenant="x"), request("b", 4, 50, service_class=BATCH))
    bench.step()
    bench.add(*(request(f"c{number}", 60, 3, service_class=BATCH) for number in range(5)))
    assert all(step["b"] == 1 for step in bench.run(5))


def test_a_tenant_at_its_cap_does_not_make_the_machine_look_slow():
    """x has a queue, but the steps are nearly empty: what they do tells nothing of how long others would wait."""
    policies = Policies(tenants={"x": TenantPolicy(kv_share=0.1, kv_cap=0.1)})
    bench = Bench(max_num_seqs=16, budget=512, policies=policies, num_pages=1001, prefix_caching=False)
    bench.add(request("x0", 100, 300, tenant="x"), request("x1", 380, 20, tenant="x"))
    bench.run(200, seconds=0.1)
    now = bench.clock.now()
    bench.add(*(request(f"y{number}", 380, 20, tenant="y", arrival=now, queue_deadline=now + 10.0) for number in range(6)))
    assert bench.scheduler.num_waiting == 7


def test_prompts_that_are_mostly_cached_are_little_work():
    bench = Bench(num_pages=1001, budget=512, max_num_seqs=2, decode_price=0.0)
    system = [number % 50 for number in range(360)]
    for number in range(40):
        bench.add(request(f"warm{number}", [*system, number], 1))
        bench.step()
    before = bench.scheduler._waiting.work_ahead("", BATCH)
    bench.add(request("a", [*system, 1, 2, 3], 1))
    assert bench.scheduler._waiting.work_ahead("", BATCH) - before < 60


def test_what_a_short_chunk_fills_is_not_found_by_a_request_of_the_same_step():
    """A step of few tokens a row may write and read pages in one kernel; one that has a longer row writes first."""
    bench, prompt = Bench(budget=16), [*range(1, 21)]
    bench.add(request("a", prompt))
    assert bench.rows() == {"a": 16}
    bench.add(request("b", [*prompt, 99]))
    assert bench.rows() == {"a": 4, "b": 5}
    bench.add(request("c", [*prompt, 98]))
    assert bench.rows()["c"] == 1
    bench = Bench(budget=32)
    bench.add(request("a", prompt), request("b", [*prompt, 99]))
    assert bench.rows() == {"a": 20, "b": 1}
