"""Service classes: who is next, who gives way, and that everybody's turn comes. And the waiting queue's order."""

from itertools import pairwise

import pytest

from jaxserve.config.policies import ClassPolicy, Policies
from jaxserve.scheduler.fairness import TokenWork
from jaxserve.scheduler.request import Sequence
from jaxserve.scheduler.waiting import WaitingQueue
from tests.support.bench import BATCH, FREE, MAX_LEN, PAID, Bench, request

CLASSES = (PAID, FREE, BATCH)


def started(bench, steps):
    """Sequences in the order in which they first run."""
    order = []
    for step in bench.run(steps):
        order += [name for name in step if name not in order]
    return order


# Who is next


def test_classes_start_in_order_of_precedence():
    bench = Bench(max_num_seqs=1)
    for service_class in reversed(CLASSES):
        bench.add(request(service_class, 4, 1, service_class=service_class))
    assert started(bench, 10) == list(CLASSES)


@pytest.mark.parametrize(("service_class", "seconds"), [(FREE, 10.0), (BATCH, 20.0)])
def test_a_class_that_waited_so_many_seconds_longer_for_each_rank_is_next(service_class, seconds):
    for now, first in ((seconds - 0.1, "paid"), (seconds + 0.1, "old")):
        bench = Bench(max_num_seqs=1, aging_s=10.0)
        bench.add(request("old", 4, 1, service_class=service_class))
        bench.clock.advance(now)
        bench.add(request("paid", 4, 1, arrival=now))
        assert started(bench, 2)[0] == first


def test_under_lasting_load_of_higher_classes_a_class_gets_one_turn_in_its_seconds():
    """A paid request arrives and one starts every second; ten batch requests are older than all of them."""
    bench = Bench(max_num_seqs=1, aging_s=5.0, prefix_caching=False)
    bench.add(*(request(f"batch{number}", 4, 1, service_class=BATCH) for number in range(10)))
    bench.clock.advance(100.0)
    turns: list[str] = []
    for number in range(50):
        bench.add(request(f"paid{number}", 4, 1, arrival=bench.clock.now()))
        turns += bench.rows(1.0)
    batch = [index for index, name in enumerate(turns) if name.startswith("batch")]
    assert batch[0] == 0, "it waited for 100 s"
    gaps = {later - sooner for sooner, later in pairwise(batch)}
    assert gaps <= set(range(8, 13)), "ten seconds, of which one paid request more waits each time"


def test_tenants_of_a_class_take_turns_and_a_tenants_requests_come_in_order():
    bench = Bench(max_num_seqs=1, prefix_caching=False)
    bench.add(*(request(name, 8, 1, tenant=name[0]) for name in ("a0", "a1", "a2", "b0", "b1")))
    assert started(bench, 9) == ["a0", "b0", "a1", "b1", "a2"]


# Who runs first


def test_paid_prompts_run_before_free_ones_and_those_before_batch():
    bench = Bench(budget=12, prefix_caching=False, long_prefill_token_threshold=4, low_watermark=0.0)
    for service_class in reversed(CLASSES):
        bench.add(request(service_class, 30, service_class=service_class))
        bench.step()
    assert list(bench.rows()) == list(CLASSES)


def test_interactive_requests_start_before_batch_prompts_go_on():
    bench = Bench(budget=16)
    bench.add(request("batch", 100, service_class=BATCH))
    bench.step()
    bench.add(request("a", 14))
    assert bench.rows() == {"a": 14, "batch": 2}
    assert bench.rows() == {"a": 1, "batch": 15}


def test_a_batch_request_starts_only_when_interactive_ones_leave_tokens():
    bench = Bench(budget=16)
    bench.add(request("a", 24), request("batch", 20, service_class=BATCH))
    assert [bench.rows() for _ in range(2)] == [{"a": 16}, {"a": 8, "batch": 8}]


# Giving way


def test_an_interactive_request_takes_a_batch_slot_when_all_are_taken():
    bench = Bench(max_num_seqs=2)
    bench.add(*(request(name, 4, 50, service_class=BATCH) for name in "bc"))
    bench.step()
    bench.add(request("a", 4))
    assert bench.rows() == {"b": 1}, "c is the youngest"
    assert bench.rows() == {"a": 4, "b": 1}


def test_an_interactive_request_takes_pages_of_batch():
    bench = Bench(num_pages=21, budget=100, low_watermark=0.0, high_watermark=0.0)
    bench.add(request("b", 60, 10, service_class=BATCH))
    bench.step()
    bench.add(request("a", 40, 10))
    assert bench.plan() is None
    assert bench.rows()["a"] == 40


def test_batch_keeps_its_place_if_all_of_it_would_not_be_enough():
    bench = Bench(num_pages=21, budget=100, low_watermark=0.0, high_watermark=0.0)
    bench.add(request("b", 16, 10, service_class=BATCH), request("a", 40, 10))
    bench.step()
    bench.add(request("c", 50, 4))
    bench.run(5)
    assert not bench.preemptions


@pytest.mark.parametrize("service_class", [PAID, FREE])
def test_interactive_sequences_give_no_slot_away(service_class):
    bench = Bench(max_num_seqs=1)
    bench.add(request("a", 4, 50, service_class=service_class))
    bench.step()
    bench.add(request("b", 4))
    bench.run(5)
    assert not bench.preemptions


def test_batch_takes_no_slot_of_batch():
    bench = Bench(max_num_seqs=1)
    bench.add(request("a", 4, 50, service_class=BATCH), request("b", 4, 50, service_class=BATCH))
    bench.run(10)
    assert not bench.preemptions


def test_a_batch_sequence_gives_way_twice_and_then_stays():
    bench = Bench(max_num_seqs=1)
    bench.add(request("b", 4, 6, service_class=BATCH))
    bench.step()
    for number in range(5):
        bench.add(request(f"a{number}", 4, 1))
        for _ in range(3):
            plan = bench.plan()
            if plan is not None:
                bench.scheduler.apply(plan, bench.executor.submit(plan).result())
    assert [event.id for event in bench.preemptions] == ["b", "b"]
    assert "b" not in bench.scheduler.sequences, "it ran to its end while a2 waited"


def test_running_out_of_pages_hits_the_lowest_class_not_the_youngest():
    bench = Bench(num_pages=10, budget=64, prefix_caching=False)
    for service_class in (BATCH, FREE, PAID):
        bench.add(request(service_class, 12, 40, service_class=service_class))
    bench.step()
    assert bench.cache.num_free == 0
    assert bench.rows().keys() == {FREE, PAID}
    assert [event.service_class for event in bench.preemptions] == [BATCH]


# Shares


def test_a_class_holds_no_more_than_its_share():
    policies = Policies(classes={BATCH: ClassPolicy(kv_share=0.5)})
    bench = Bench(num_pages=41, budget=200, max_num_seqs=8, policies=policies, low_watermark=0.0)
    bench.add(*(request(f"b{number}", 40, 2, service_class=BATCH) for number in range(3)))
    bench.add(request("a", 40, 2))
    assert bench.rows().keys() == {"a", "b0", "b1"}


# The queue


def queued(aging=10.0):
    work = TokenWork(Policies(), 1.0, 2.0)
    return work, WaitingQueue(work, aging)


def waiting(name, prompt=4, **more):
    return Sequence.from_request(request(name, prompt, **more), MAX_LEN)


def test_what_was_admitted_before_comes_back_to_the_front_in_order():
    _, queue = queued()
    for name in ("c", "d"):
        queue.append(waiting(name))
    first, second = waiting("a"), waiting("b")
    queue.put_back([first, second])
    order = []
    while len(queue):
        sequence = queue.order().next(only_interactive=False)
        queue.pop(sequence, 0.0)
        order.append(sequence.request.id)
    assert order == ["a", "b", "c", "d"]


def names(order, *, only_interactive=False):
    """Who is offered if nothing of anybody's tenant can start."""
    offered = []
    while sequence := order.next(only_interactive=only_interactive):
        offered.append(sequence.request.id)
        order.skip_tenant(sequence)
    return offered


def test_tenants_that_are_passed_over_leave_the_turn_to_others():
    work, queue = queued()
    for tenant, service_class in (("a", PAID), ("b", PAID), ("c", FREE), ("d", BATCH)):
        work.enter(tenant)
        queue.append(waiting(tenant, tenant=tenant, service_class=service_class))
    work.charge("a", 1, 0)
    assert names(queue.order()) == ["b", "a", "c", "d"]
    assert names(queue.order(), only_interactive=True) == ["b", "a", "c"]


def test_a_tenant_is_passed_over_in_one_class_only():
    _, queue = queued()
    for name, service_class in (("a", PAID), ("b", FREE), ("c", FREE)):
        queue.append(waiting(name, tenant="t", service_class=service_class))
    assert names(queue.order()) == ["a", "b"]


def test_a_class_that_is_passed_over_leaves_the_turn_to_others():
    _, queue = queued()
    for name, service_class in (("a", PAID), ("b", PAID), ("c", FREE)):
        queue.append(waiting(name, tenant=name, service_class=service_class))
    order = queue.order()
    order.skip_class(PAID)
    assert names(order) == ["c"]


def test_after_an_admission_the_tenants_order_is_that_of_their_work_now():
    work, queue = queued()
    for tenant in "ab":
        work.enter(tenant)
        queue.append(waiting(f"{tenant}0", tenant=tenant))
        queue.append(waiting(f"{tenant}1", tenant=tenant))
    order, admitted = queue.order(), []
    while sequence := order.next(only_interactive=False):
        admitted.append(sequence.request.id)
        queue.pop(sequence, 0.0)
        work.charge(sequence.request.tenant, 4, 0)
        order.admitted(sequence)
    assert admitted == ["a0", "b0", "a1", "b1"]


def test_the_queue_knows_whether_an_interactive_request_could_start():
    _, queue = queued()
    queue.append(waiting("b", service_class=BATCH))
    assert not queue.has_interactive
    free = waiting("a", service_class=FREE)
    queue.append(free)
    assert queue.has_interactive
    queue.remove(free)
    assert not queue.has_interactive


def test_the_queue_counts_sequences_tokens_and_tenants():
    _, queue = queued()
    first, second = waiting("a", 5, tenant="x"), waiting("b", 7, tenant="y", service_class=BATCH)
    queue.append(first)
    queue.append(second)
    assert (len(queue), queue.num_tokens, queue.tenants()) == (2, 12, {"x", "y"})
    assert queue.interactive_tokens == 5
    queue.remove(first)
    queue.grew(second, 1)
    second.tokens.append(3)
    assert (len(queue), queue.num_tokens, queue.tenants()) == (1, 8, {"y"})
    assert queue.interactive_tokens == 0
    queue.set_class(second, FREE)
    assert (queue.num_tokens, queue.interactive_tokens) == (8, 8)
    queue.check([])
    queue.remove(second)
    assert (len(queue), queue.num_tokens, queue.tenants()) == (0, 0, set())
    queue.check([])
