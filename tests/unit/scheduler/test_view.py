"""How a scheduler stands, as those are told who watch it."""

from collections import Counter

import msgspec
import pytest

from jaxserve.cache.swap import SwapSpace
from jaxserve.metrics import frame
from jaxserve.scheduler import preemption, view
from tests.support.bench import BATCH, FREE, PAID, Bench, request


def busy():
    """Two sequences run, of four pages of four tokens each; three wait."""
    bench = Bench(num_pages=21, max_num_seqs=2, budget=100, prefix_caching=False)
    bench.add(*(request(name, 14, 8, tenant="x") for name in "ab"))
    bench.add(request("c", 4, 4, tenant="y", service_class=FREE), *(request(name, 4, 4, service_class=BATCH) for name in "de"))
    bench.clock.advance(1.5)
    bench.step()
    return bench


def test_a_snapshot():
    bench = busy()
    now = bench.scheduler.view.snapshot(2.0)
    assert (now.running, now.waiting, now.more_rows, now.more_waiting) == (2, 3, 0, 0)
    assert [(one.service_class, one.tenant, one.waiting) for one in now.queues] == [(FREE, "y", 1), (BATCH, "", 2)]
    row = now.rows[0]
    assert (row.id, row.service_class, row.tenant, row.arrival, row.admitted) == ("a", PAID, "x", 0.0, 1.5)
    assert (row.prompt_tokens, row.computed, row.output_tokens, row.pages, row.preemptions) == (14, 14, 1, 4, 0)
    pages = now.pages
    assert (pages.total, pages.running, pages.cached, pages.free, pages.size) == (20, 8, 0, 12, 4)
    assert pages.running == bench.cache.num_usable - bench.cache.num_free
    assert (now.pace.itl_target, now.pace.itl_kept) == (0.0, 0.0)


def test_what_is_cached_is_told_apart_from_what_is_free():
    bench = Bench(num_pages=21, budget=100)
    bench.add(request("a", 16, 2))
    while "a" not in bench.ended:
        bench.step()
    pages = bench.scheduler.view.snapshot(0.0).pages
    assert (pages.running, pages.cached, pages.free) == (0, 4, 16)


def test_swapped_pages():
    bench = Bench(num_pages=21, swap=SwapSpace(7, 0.0), swap_slots=7)
    pages = bench.scheduler.view.snapshot(0.0).pages
    assert (pages.swapped, pages.swap_total) == (0, 7)


def test_lists_are_short_and_say_what_is_left_out(monkeypatch):
    monkeypatch.setattr(view, "MAX_ROWS", 1)
    monkeypatch.setattr(view, "MAX_QUEUES", 2)
    bench = busy()
    for tenant, count in (("p", 1), ("q", 3), ("r", 2)):
        bench.add(*(request(f"{tenant}{number}", 4, 4, tenant=tenant, service_class=BATCH) for number in range(count)))
    now = bench.scheduler.view.snapshot(0.0)
    assert ([one.id for one in now.rows], now.more_rows) == (["a"], 1)
    assert [(one.tenant, one.waiting) for one in now.queues] == [("y", 1), ("q", 3), ("", 2)]
    assert now.more_waiting == now.waiting - 6 == 3


def test_what_is_promised():
    bench = Bench(itl_target_ms=20.0, ttft_target_ms=500.0)
    bench.scheduler.promises.first_token(request("late", 4, 4, arrival=-1.0), 0.0)
    pace = bench.scheduler.view.snapshot(0.0).pace
    assert (pace.ttft_target, pace.itl_target, pace.itl_kept) == (0.5, 0.02, 0.02)
    assert (pace.due, pace.broken) == (1.0, 1.0)


def test_tokens_of_prompts_in_a_step():
    bench = busy()
    bench.add(request("more", 5, 4))
    plan = bench.plan()
    assert bench.scheduler.view.prefill_tokens(plan.step) == 0, "both slots are taken"
    one = Bench(budget=100)
    one.add(request("a", 12, 4))
    one.step()
    one.add(request("b", 9, 4))
    plan = one.plan()
    assert plan is not None
    assert (plan.num_tokens, one.scheduler.view.prefill_tokens(plan.step)) == (10, 9)


def preemptions(count, monkeypatch):
    monkeypatch.setattr(preemption, "RECENT", 2)
    bench = Bench(num_pages=11, budget=100, low_watermark=0.0, high_watermark=0.0, prefix_caching=False)
    bench.add(*(request(name, 8, 30) for name in "abcd"))
    while bench.scheduler.num_preemptions < count:
        bench.step()
    return bench


@pytest.mark.parametrize("first", [-5, 0, 1, 2, 3, 99])
def test_preemptions_from_a_number_on(first, monkeypatch):
    bench = preemptions(3, monkeypatch)
    count = bench.scheduler.num_preemptions
    begins, rows = bench.scheduler.view.preempted(first)
    assert begins == min(max(first, count - 2), count), "what is no longer kept leaves a gap that shows"
    assert [one.id for one in rows] == [one.id for one in bench.preemptions[begins:]]
    assert bench.scheduler.view.snapshot(0.0).preemptions == Counter(one.reason for one in bench.preemptions)


def test_a_frame_survives_the_way_between_processes():
    snapshot = busy().scheduler.view.snapshot(2.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=frame.Snapshot) == snapshot
