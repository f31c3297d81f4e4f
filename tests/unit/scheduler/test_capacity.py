"""Who may start: pages now and as outputs grow, quotas and bursts of tenants, shares of classes."""

import pytest

from jaxserve.config.policies import ClassPolicy, Policies, TenantPolicy
from tests.support.bench import BATCH, Bench, request


def running(bench):
    return set(bench.scheduler.sequences) - {sequence.request.id for sequence in bench.scheduler._waiting}


def bench_of(pages, **settings):
    """Pages of four tokens, and steps that hold any number of prompts."""
    return Bench(
        num_pages=pages + 1, **({"budget": 400, "max_num_seqs": 8, "low_watermark": 0.0, "prefix_caching": False} | settings)
    )


# Foresight


@pytest.mark.parametrize(("reserve", "started"), [(0.0, "abcd"), (0.5, "ab"), (1.0, "a")])
def test_pages_are_kept_for_outputs_as_far_as_they_are_reserved(reserve, started):
    """Four requests of 20 + 80 tokens in 35 pages: each grows from 5 pages to 25, or to 15 at half."""
    bench = bench_of(35, growth_reserve=reserve)
    bench.add(*(request(name, 20, 80) for name in "abcd"))
    bench.step()
    assert running(bench) == set(started)


def test_what_ends_soon_leaves_its_pages_to_what_starts():
    """The short output has ended, and its 40 tokens are free, before the long one has grown: 100 tokens are never exceeded."""
    bench = bench_of(25, growth_reserve=1.0)
    bench.add(request("short", 40, 8), request("long", 20, 60))
    bench.step()
    assert running(bench) == {"short", "long"}
    bench.run(80)
    assert not bench.preemptions


def test_the_worst_moment_is_just_before_an_output_ends():
    """When "short" ends both have grown by 16: 40 + 16 + 20 + 16 tokens are 23 pages."""
    for pages, started in ((23, {"short", "long"}), (22, {"short"})):
        bench = bench_of(pages, growth_reserve=1.0)
        bench.add(request("short", 40, 16), request("long", 20, 30))
        bench.step()
        assert running(bench) == started


def test_expected_lengths_are_those_of_the_tenant():
    bench = bench_of(50, growth_reserve=1.0)
    bench.add(request("warm", 4, 8, tenant="t"))
    bench.run(10)
    bench.add(*(request(name, 60, 200, tenant="t") for name in "abc"))
    bench.step()
    assert running(bench) == {"a", "b"}, "eight more tokens each, as the one that ended, not 200: 34 of 50 pages"


def test_without_mistaken_expectations_nobody_is_preempted():
    bench = bench_of(60, growth_reserve=1.0)
    bench.add(*(request(f"r{number}", 10 + 7 * number % 50, 60) for number in range(20)))
    bench.run(1000)
    assert not bench.preemptions
    assert len(bench.ended) == 20


def test_the_only_sequence_may_start_whatever_is_expected_of_it():
    bench = bench_of(25, growth_reserve=1.0, low_watermark=0.5, high_watermark=0.5)
    bench.add(request("a", 99, 300))
    assert bench.rows() == {"a": 99}


def test_those_behind_one_that_has_no_room_wait_too():
    bench = bench_of(25)
    bench.add(request("a", 60), request("b", 60), request("c", 4))
    bench.step()
    assert running(bench) == {"a"}


def test_shared_pages_are_needed_once():
    bench = bench_of(20, prefix_caching=True)
    bench.add(request("a", range(41)), request("b", range(41)), request("c", range(41)))
    bench.step()
    assert running(bench) == {"a", "b", "c"}
    assert bench.cache.num_free == 20 - 10 - 3


# Tenants


def with_quota(**policy):
    return Policies(tenants={"x": TenantPolicy(**policy)})


def test_a_tenant_at_its_cap_is_passed_over_and_others_start():
    bench = bench_of(100, policies=with_quota(kv_share=0.2, kv_cap=0.2))
    bench.add(*(request(f"x{number}", 40, tenant="x") for number in range(3)), request("y", 40))
    bench.step()
    assert running(bench) == {"x0", "x1", "y"}


def test_beyond_its_quota_a_tenant_may_burst_while_enough_stays_free():
    bench = bench_of(100, policies=with_quota(kv_share=0.2, kv_cap=0.9, burst_headroom=0.5))
    bench.add(*(request(f"x{number}", 80, tenant="x") for number in range(4)))
    bench.step()
    assert running(bench) == {"x0", "x1"}, "50 pages must stay free"
    assert bench.cache.num_free == 60


def test_a_burst_leaves_slots_free():
    bench = bench_of(100, policies=with_quota(kv_share=0.25, kv_cap=0.9, burst_headroom=0.5))
    bench.add(*(request(f"x{number}", 4, tenant="x") for number in range(8)))
    bench.step()
    assert len(running(bench)) == 4, "half of 8 slots must stay free"


def test_a_burst_ends_at_the_cap():
    bench = bench_of(100, policies=with_quota(kv_share=0.2, kv_cap=0.45, burst_headroom=0.0))
    bench.add(*(request(f"x{number}", 80, tenant="x") for number in range(4)))
    bench.step()
    assert running(bench) == {"x0", "x1"}


def test_within_its_quota_a_tenant_needs_no_headroom():
    bench = bench_of(100, policies=with_quota(kv_share=0.5, burst_headroom=0.5))
    bench.add(request("y", 200), request("x", 160, tenant="x"))
    bench.step()
    assert running(bench) == {"x", "y"}


def test_a_tenant_may_always_have_one_sequence_in_a_slot():
    bench = bench_of(100, max_num_seqs=2, policies=with_quota(kv_share=0.1, kv_cap=0.5, burst_headroom=0.9))
    bench.add(request("y", 4), request("x", 4, tenant="x"))
    bench.step()
    assert running(bench) == {"x", "y"}


# Classes


def test_a_class_may_always_have_one_sequence():
    bench = bench_of(40, policies=Policies(classes={BATCH: ClassPolicy(kv_share=0.1)}))
    bench.add(request("a", 4), request("b0", 40, service_class=BATCH), request("b1", 4, service_class=BATCH))
    bench.step()
    assert running(bench) == {"a", "b0"}


def test_a_class_beyond_its_share_leaves_the_turn_to_others():
    bench = bench_of(40, policies=Policies(classes={BATCH: ClassPolicy(kv_share=0.5)}))
    bench.add(request("b0", 60, service_class=BATCH), request("b1", 60, service_class=BATCH), request("a", 40))
    bench.step()
    bench.add(request("c", 4))
    bench.step()
    assert running(bench) == {"a", "b0", "c"}
