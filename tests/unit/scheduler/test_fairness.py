"""Counters of token-work: shares by weight, no credit for time away; and the part of a step that is reserved for prompts."""

import pytest

from jaxserve.config.policies import Policies, TenantPolicy
from jaxserve.scheduler.fairness import MAX_IDLE_TENANTS, PrefillTokens, TokenWork
from tests.support.bench import Bench, request

# Through the scheduler


def backlog(bench, tenant, count, prompt=16, max_tokens=1):
    bench.add(*(request(f"{tenant}{number}", prompt, max_tokens, tenant=tenant) for number in range(count)))


def work_by_tenant(steps):
    """Tokens computed for tenants of one letter."""
    done: dict[str, int] = {}
    for step in steps:
        for name, tokens in step.items():
            done[name[0]] = done.get(name[0], 0) + tokens
    return done


@pytest.mark.parametrize(("weight", "shares"), [(1, {"a": 320, "b": 320}), (3, {"a": 160, "b": 480})])
def test_backlogged_tenants_get_work_by_weight(weight, shares):
    policies = Policies(tenants={"b": TenantPolicy(weight=weight)})
    bench = Bench(max_num_seqs=1, budget=16, policies=policies, prefix_caching=False)
    backlog(bench, "a", 60)
    backlog(bench, "b", 60)
    assert work_by_tenant(bench.run(40)) == shares


def test_a_tenant_with_many_requests_gets_no_more_than_one_with_large_ones():
    bench = Bench(max_num_seqs=1, budget=16, prefix_caching=False)
    backlog(bench, "a", 80, prompt=8)
    backlog(bench, "b", 10, prompt=64)
    done = work_by_tenant(bench.run(48))
    assert done == {"a": 256, "b": 256}, "four prompts of b, and a's steps hold 8 tokens"


def test_outputs_are_charged_at_their_price():
    """Prompts of 4 and outputs of 6 at 2 a token against prompts of 16: both are work of 16."""
    bench = Bench(max_num_seqs=1, budget=16, prefix_caching=False, prefill_price=1.0, decode_price=2.0)
    backlog(bench, "a", 20, prompt=4, max_tokens=7)
    backlog(bench, "b", 20, prompt=16)
    assert work_by_tenant(bench.run(80)) == {"a": 10 * 10, "b": 10 * 16}


def test_time_away_earns_no_credit():
    bench = Bench(max_num_seqs=1, budget=16, prefix_caching=False)
    backlog(bench, "a", 60)
    backlog(bench, "b", 1)
    bench.run(20)
    bench.add(*(request(f"b-{number}", 16, 1, tenant="b") for number in range(20)))
    assert work_by_tenant(bench.run(10)) == {"a": 80, "b": 80}


def test_work_that_a_preemption_lost_is_not_charged_again(monkeypatch):
    bench = Bench(num_pages=5, budget=64, prefix_caching=False, long_prefill_token_threshold=4)
    work = bench.scheduler._work
    charge, charged = work.charge, {"a": [0, 0], "b": [0, 0]}

    def note(tenant, prompt, output):
        charged[tenant][0] += prompt
        charged[tenant][1] += output
        charge(tenant, prompt, output)

    monkeypatch.setattr(work, "charge", note)
    bench.add(request("a", 8, 6, tenant="a"), request("b", 6, 6, tenant="b"))
    bench.run(50)
    assert [event.id for event in bench.preemptions] == ["b"]
    assert charged == {"a": [8, 5], "b": [6, 5]}, "the last output is not computed"


def test_a_tenant_that_had_its_share_is_not_held_up_by_new_ones():
    bench = Bench(max_num_seqs=1, prefix_caching=False)
    bench.add(request("old0", 100, 1, tenant="old"))
    bench.step()
    bench.add(request("other", 4, 1, tenant="other"))
    bench.run(6)
    bench.add(request("old1", 4, 1, tenant="old"))
    for number in range(60):
        bench.add(request(f"new{number}", 4, 1, tenant=f"new{number}"))
        bench.step()
    assert "old1" in bench.ended


def test_a_new_tenant_does_not_come_after_another_ones_whole_queue():
    """b computes most of the work in slots that it has for long; a's queue gets the last slot, and then c comes."""
    bench = Bench(max_num_seqs=8, budget=64, num_pages=2000, prefix_caching=False)
    bench.add(*(request(f"b{number}", 4, 300, tenant="b") for number in range(7)))
    bench.step()
    bench.add(*(request(f"a{number}", 4, 4, tenant="a") for number in range(60)))
    bench.run(100)
    bench.add(request("c", 4, 4, tenant="c"))
    assert any("c" in step for step in bench.run(10))


# Counters


def waits(work, *tenants):
    for tenant in tenants:
        work.enter(tenant)
        work.wait(tenant)


def goes(work, tenant):
    work.wait_no_more(tenant)
    work.leave(tenant)


def counters(work, tenants):
    return [work.counter(tenant) for tenant in tenants]


def test_a_new_tenant_begins_at_an_equal_share_of_what_was_done():
    work = TokenWork(Policies(), 1.0, 2.0)
    waits(work, "a", "b")
    work.charge("a", 10, 5)
    work.charge("b", 7, 0)
    waits(work, "c")
    assert counters(work, "abc") == [20.0, 7.0, 13.5]


def test_an_equal_share_is_by_weight():
    work = TokenWork(Policies(tenants={"a": TenantPolicy(weight=3)}), 1.0, 2.0)
    waits(work, "a", "b")
    work.charge("a", 60, 0)
    work.charge("b", 20, 0)
    waits(work, "c")
    assert counters(work, "abc") == [20.0, 20.0, 20.0]


def test_a_tenant_that_returns_with_less_than_an_equal_share_is_lifted_to_it():
    work = TokenWork(Policies(), 1.0, 2.0)
    waits(work, "a", "b")
    goes(work, "b")
    work.charge("a", 50, 0)
    waits(work, "b")
    assert counters(work, "ab") == [50.0, 50.0]


def test_asking_for_little_earns_no_credit():
    """b has a sequence that runs all the time, but nothing that waits."""
    work = TokenWork(Policies(), 1.0, 2.0)
    waits(work, "a", "b")
    work.wait_no_more("b")
    work.charge("a", 50, 0)
    work.wait("b")
    assert counters(work, "ab") == [50.0, 50.0]


def test_a_tenant_that_returns_with_more_than_an_equal_share_keeps_its_counter():
    work = TokenWork(Policies(), 1.0, 2.0)
    waits(work, "a", "b")
    work.charge("b", 90, 0)
    goes(work, "b")
    work.charge("a", 30, 0)
    waits(work, "b")
    assert work.counter("b") == 90.0


def test_what_nobody_else_wanted_is_held_against_nobody():
    work = TokenWork(Policies(), 1.0, 2.0)
    waits(work, "a")
    work.wait_no_more("a")
    work.charge("a", 500, 0)
    waits(work, "b")
    work.wait("a")
    assert counters(work, "ab") == [500.0, 500.0]


def test_a_weight_divides_what_is_charged():
    work = TokenWork(Policies(tenants={"a": TenantPolicy(weight=4), "*": TenantPolicy(weight=0.5)}), 1.0, 2.0)
    waits(work, "a", "b")
    for tenant in "ab":
        work.charge(tenant, 8, 2)
    assert counters(work, "ab") == [3.0, 24.0]


def test_tenants_that_are_away_are_forgotten_beyond_a_number():
    """Each leaves with a debt, for "stays" waits too."""
    work = TokenWork(Policies(), 1.0, 2.0)
    waits(work, "stays")
    for number in range(MAX_IDLE_TENANTS + 10):
        waits(work, str(number))
        work.charge(str(number), 1, 0)
        goes(work, str(number))
    assert len(work._counters) == MAX_IDLE_TENANTS + 1
    assert work.active == {"stays": 1}


def test_tenants_without_a_debt_are_forgotten_at_once():
    work = TokenWork(Policies(), 1.0, 2.0)
    for number in range(100):
        waits(work, str(number))
        goes(work, str(number))
    assert len(work._counters) == 0


# What is reserved for prompts


def test_others_leave_a_tenant_its_reserve():
    policies = Policies(tenants={"a": TenantPolicy(prefill_reserve=0.25)})
    tokens = PrefillTokens(policies, 100, {"a": 60, "b": 200})
    assert (tokens.left_for("a"), tokens.left_for("b")) == (100, 75)
    tokens.take("b", 75)
    assert (tokens.left_for("a"), tokens.left_for("b")) == (25, 0)
    tokens.take("a", 10)
    assert (tokens.left_for("a"), tokens.left_for("b")) == (15, 0)


def test_what_a_tenant_took_is_no_longer_reserved():
    policies = Policies(tenants={"a": TenantPolicy(prefill_reserve=0.25)})
    tokens = PrefillTokens(policies, 100, {"a": 60, "b": 200})
    tokens.take("a", 40)
    assert tokens.left_for("b") == 60


def test_nothing_is_reserved_for_tenants_without_a_prompt():
    tokens = PrefillTokens(Policies(tenants={"a": TenantPolicy(prefill_reserve=0.25)}), 100, {"b": 200})
    assert tokens.left_for("b") == 100


def test_no_more_is_reserved_than_a_tenant_has_to_compute():
    tokens = PrefillTokens(Policies(tenants={"a": TenantPolicy(prefill_reserve=0.25)}), 100, {"a": 5, "b": 200})
    assert (tokens.left_for("a"), tokens.left_for("b")) == (100, 95)


def test_what_is_not_used_of_reserves_is_everybodys():
    tokens = PrefillTokens(Policies(tenants={"a": TenantPolicy(prefill_reserve=0.25)}), 100, {"a": 60, "b": 200})
    tokens.take("b", 75)
    tokens.release()
    assert tokens.left_for("b") == 25


def test_reserves_of_all_others_never_exceed_the_step():
    tokens = PrefillTokens(Policies(tenants={"*": TenantPolicy(prefill_reserve=0.5)}), 90, dict.fromkeys("abc", 90))
    assert [tokens.left_for(tenant) for tenant in "abc"] == [30, 30, 30]


def test_a_reserve_lets_a_small_tenant_start_beside_a_large_prompt():
    policies = Policies(tenants={"b": TenantPolicy(prefill_reserve=0.5)})
    bench = Bench(budget=16, policies=policies)
    bench.add(request("a", 100, tenant="a"))
    assert bench.rows() == {"a": 16}
    bench.add(request("b", 20, tenant="b"))
    assert bench.rows() == {"a": 8, "b": 8}
    assert bench.rows() == {"a": 8, "b": 8}
    assert bench.rows() == {"a": 12, "b": 4}, "the reserve is for prompts that are there"


def test_a_bound_holds_until_it_is_released():
    tokens = PrefillTokens(Policies(), 100, {})
    tokens.take("a", 20)
    tokens.bound(32)
    tokens.bound(50)
    assert (tokens.left, tokens.taken) == (12, 20)
    tokens.take("b", 2)
    tokens.release()
    assert (tokens.left, tokens.taken) == (78, 22)
    tokens.bound(10)
    assert (tokens.left, tokens.taken) == (0, 22)
    tokens.release()
    tokens.release()
    assert (tokens.left, tokens.taken) == (78, 22)
