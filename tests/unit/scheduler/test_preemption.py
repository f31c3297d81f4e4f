"""Who gives its pages back, what is told of it, and whether pages are swapped or computed again."""

import pytest

from jaxserve.cache.swap import SwapSpace
from jaxserve.config.policies import Policies, TenantPolicy
from jaxserve.scheduler.preemption import Preemption, Reason
from jaxserve.step.plan import MoveKind
from tests.support.bench import BATCH, FREE, PAID, Bench, request
from tests.support.hash_executor import expected
from tests.support.plans import moved


def preempted(bench):
    return [event.id for event in bench.preemptions]


def full(*requests, pages, **settings):
    """A bench whose pages of four tokens the requests take to the last one, and no watermarks."""
    bench = Bench(num_pages=pages + 1, budget=100, low_watermark=0.0, high_watermark=0.0, prefix_caching=False, **settings)
    bench.add(*requests)
    bench.step()
    assert bench.cache.num_free == 0
    return bench


# Victims


def test_the_victim_loses_the_fewest_tokens_for_each_page():
    """The oldest needs a page. b holds 9 tokens in 3 pages, c holds 8 in 2."""
    bench = full(request("a", 12, 20), request("b", 9, 20), request("c", 8, 20), pages=8)
    bench.step()
    assert preempted(bench) == ["b"]


def test_of_equal_victims_the_youngest_goes():
    bench = full(*(request(name, 8, 20) for name in "abc"), pages=6)
    bench.step()
    assert preempted(bench) == ["c"]


def test_a_lower_class_goes_before_a_cheaper_victim():
    bench = full(request("a", 12, 20), request("b", 12, 20, service_class=FREE), request("c", 9, 20), pages=9)
    bench.step()
    assert preempted(bench) == ["b"]


def test_a_tenant_beyond_its_quota_goes_before_a_lower_class():
    policies = Policies(tenants={"x": TenantPolicy(kv_share=0.2, burst_headroom=0.0)})
    bench = full(
        request("a", 12, 20),
        request("b", 12, 20, service_class=FREE),
        request("c", 12, 20, tenant="x"),
        pages=9,
        policies=policies,
    )
    bench.step()
    assert preempted(bench) == ["c"]


def test_nobody_of_more_precedence_is_taken():
    """Batch needs a page that only interactive sequences have: it goes itself."""
    bench = full(request("b", 12, 20, service_class=BATCH), request("a", 14, 20), pages=7)
    bench.step()
    assert preempted(bench) == ["b"]


def test_pages_that_others_hold_too_are_no_gain():
    """b and c share three pages and have one each: 13 tokens for a page. d loses 12 for three."""
    bench = Bench(num_pages=12, budget=100, low_watermark=0.0, high_watermark=0.0)
    shared = range(20, 33)
    bench.add(request("a", 12, 20), request("d", 12, 20), request("b", shared, 20), request("c", shared, 20))
    bench.step()
    assert bench.cache.num_free == 0
    bench.step()
    assert preempted(bench) == ["d"]


def test_the_first_of_all_runs_to_its_end():
    bench = full(*(request(name, 12, 24) for name in "abc"), pages=9)
    while "a" in bench.scheduler.sequences:
        assert "a" in bench.rows()
    assert "a" not in preempted(bench)


def test_a_sequence_that_was_preempted_twice_rises_a_class():
    bench = Bench()
    bench.add(request("b", 4, service_class=BATCH))
    sequence = bench.scheduler.sequences["b"]
    bench.step()
    ranks = []
    for times in range(7):
        sequence.num_preemptions = times
        ranks.append(sequence.precedence[0])
    assert ranks == [2, 2, 1, 1, 0, 0, 0]


def test_everybody_ends_in_a_pool_that_holds_one_of_four():
    bench = Bench(num_pages=11, budget=64, prefix_caching=False)
    requests = [request(name, 12, 24, service_class=one) for name, one in zip("abcd", (BATCH, FREE, PAID, FREE), strict=True)]
    bench.add(*requests)
    bench.run(400)
    assert bench.tokens == {one.id: expected(list(one.prompt), 24) for one in requests}
    assert set(preempted(bench)) >= {"a"}


# A tenant's cap


def capped(cap):
    return Policies(tenants={"x": TenantPolicy(kv_share=cap, kv_cap=cap)})


def test_at_its_cap_a_tenant_takes_pages_of_its_own_sequences_only():
    """x may hold half of 20 pages; its first sequence needs an eleventh."""
    bench = Bench(num_pages=21, budget=100, policies=capped(0.5), prefix_caching=False)
    bench.add(request("x0", 20, 20, tenant="x"), request("x1", 20, 20, tenant="x"), request("y", 8, 20, service_class=BATCH))
    bench.step()
    assert bench.cache.tenant_pages("x") == 10
    bench.step()
    assert preempted(bench) == ["x1"]
    assert bench.cache.tenant_pages("x") == 6


def test_a_tenant_never_holds_more_than_its_cap():
    bench = Bench(num_pages=41, budget=100, max_num_seqs=8, policies=capped(0.25), prefix_caching=False)
    bench.add(*(request(f"x{number}", 10, 20, tenant="x") for number in range(4)), request("y", 10, 90))
    most = 0
    while len(bench.ended) < 5:
        bench.step()
        most = max(most, bench.cache.tenant_pages("x"))
    assert 8 <= most <= 10
    assert all(len(tokens) == 20 for name, tokens in bench.tokens.items() if name != "y")


# What is told


def test_a_preemption_is_told_with_what_it_cost():
    bench = full(*(request(name, 12, 20, tenant="t", service_class=FREE) for name in "abc"), pages=9)
    bench.clock.advance(2.5)
    bench.step()
    told = Preemption("c", "t", FREE, 2.5, tokens_lost=12, pages_gained=3, swapped=False, reason=Reason.PAGES, needed_by="a")
    assert bench.preemptions == [told]
    assert (bench.scheduler.num_preemptions, bench.scheduler.num_lost_tokens) == (1, 12)


def reasons(bench):
    return [(one.id, one.reason, one.needed_by) for one in bench.preemptions]


def test_the_reason_is_that_one_who_waits_goes_first():
    bench = full(request("low", 16, 20, service_class=BATCH), pages=4)
    bench.add(request("high", 8, 4))
    bench.plan()
    assert reasons(bench) == [("low", Reason.ADMISSION, "high")]


def test_the_reason_is_its_own_growth_where_nobody_goes_behind_it():
    bench = full(request("a", 9, 20), request("b", 8, 20), pages=5)
    bench.step()
    assert reasons(bench) == [("b", Reason.OWN_GROWTH, "b")]


def test_the_reason_is_the_tenants_cap_where_pages_are_free():
    policies = Policies(tenants={"t": TenantPolicy(kv_share=0.5, kv_cap=0.5)})
    bench = Bench(num_pages=9, budget=100, low_watermark=0.0, high_watermark=0.0, prefix_caching=False, policies=policies)
    bench.add(*(request(name, 8, 6, tenant="t") for name in "ab"))
    bench.step()
    bench.step()
    assert reasons(bench) == [("b", Reason.TENANT_CAP, "a")]


# Swaps


def swapping(*, places=40, page_seconds=0.0, a_token=0.001):
    """Two prompts of three pages in seven; a prefill token takes so many seconds."""
    bench = Bench(
        num_pages=8,
        budget=16,
        prefix_caching=False,
        swap=SwapSpace(places, page_seconds),
        swap_slots=places,
        low_watermark=0.0,
        high_watermark=0.0,
    )
    bench.add(request("a", 12, 10), request("b", 12, 10))
    bench.step(16 * a_token)
    bench.step(16 * a_token)
    return bench


@pytest.mark.parametrize(
    ("page_seconds", "swapped"), [(0.0, True), (0.0019, True), (0.0021, False)], ids=["free", "cheaper", "dearer"]
)
def test_pages_are_swapped_if_that_is_faster_than_computing_again(page_seconds, swapped):
    """Four tokens a page at a millisecond: out and in may take 2 ms each."""
    bench = swapping(page_seconds=page_seconds)
    while not bench.preemptions:
        bench.step()
    (event,) = bench.preemptions
    assert (event.id, event.swapped, event.tokens_lost) == ("b", swapped, 0 if swapped else 12)


def test_before_a_prefill_was_measured_nothing_is_swapped():
    bench = Bench(num_pages=7, budget=64, prefix_caching=False, swap=SwapSpace(40, 0.0), swap_slots=40)
    bench.add(request("a", 12, 10), request("b", 12, 10))
    bench.run(2)
    assert [event.swapped for event in bench.preemptions] == [False]


def test_what_does_not_fit_the_swap_space_is_computed_again():
    bench = swapping(places=2)
    while not bench.preemptions:
        bench.step()
    assert [(event.swapped, event.tokens_lost) for event in bench.preemptions] == [(False, 12)]


def test_a_swapped_sequence_goes_on_where_it_was():
    bench = swapping()
    plans = []
    while bench.scheduler.sequences:
        plans.append(bench.step()[0])
    out = next(pairs for plan in plans if (pairs := moved(plan, MoveKind.TO_TIER)))
    back = next(plan for plan in plans if moved(plan, MoveKind.FROM_TIER))
    assert [slot for _, slot in out] == [slot for slot, _ in moved(back, MoveKind.FROM_TIER)]
    assert len(out) == 3
    row = back.ids.index("b")
    assert (back.query_start[row + 1] - back.query_start[row], back.kv_length[row]) == (1, 13)
    assert {name: len(tokens) for name, tokens in bench.tokens.items()} == {"a": 10, "b": 10}
    assert bench.tokens["b"] == expected(list(request("b", 12).prompt), 10)


def test_places_are_free_again_after_an_abort():
    bench = swapping()
    while not bench.preemptions:
        bench.step()
    swap = bench.scheduler._running._swap
    assert swap.num_free == 37
    bench.scheduler.abort(["b"])
    bench.scheduler.check()
    assert swap.num_free == 40
