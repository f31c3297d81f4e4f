"""Classes, tenants, deadlines and policies in whole simulations: they reach the scheduler, and every end has its account."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.config.policies import Policies, TenantPolicy
from jaxserve.errors import ErrorCode
from jaxserve.simulation.fairness import WINDOW_S, Fairness, jain
from jaxserve.simulation.fleet import Fleet
from jaxserve.simulation.report import Report, report
from jaxserve.types import ServiceClass
from tests.unit.simulation.support import checked, request, scenario, trace

ONE_AT_A_TIME = {"max_num_seqs": 1}


def outcome(path: str, **settings: Any) -> tuple[Fleet, Report]:
    plan = scenario(trace=path, **settings)
    fleet = checked(plan)
    return fleet, report(plan, fleet)


def policies(path: Path, content: dict[str, Any]) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def test_interactive_requests_pass_batch_ones(tmp_path: Path) -> None:
    entries = [request(0.001 * at, 400, 40, **{"class": "batch" if at < 20 else "interactive_paid"}) for at in range(24)]
    path = trace(tmp_path / "t.jsonl", *entries)
    _, result = outcome(path, scheduler={"max_num_seqs": 4})
    paid, batch = result.classes["interactive_paid"], result.classes["batch"]
    assert (paid.finished, batch.finished) == (4, 20)
    assert paid.ttft.max < batch.ttft.p50
    assert list(result.classes) == ["interactive_paid", "batch"]


def test_requests_without_a_class_have_the_schedulers(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", request(0, 10, 2))
    _, result = outcome(path, scheduler={"default_class": "interactive_free"})
    assert list(result.classes) == [ServiceClass.INTERACTIVE_FREE]


def test_who_waits_too_long_is_told_when_to_come_back(tmp_path: Path) -> None:
    entries = [request(0, 100, 300), request(0.1, 100, 5, queue_timeout=0.5)]
    fleet, result = outcome(trace(tmp_path / "t.jsonl", *entries), scheduler=ONE_AT_A_TIME)
    assert (result.all.finished, result.all.expired) == (1, 1)
    assert fleet.ledger.refusals == {ErrorCode.DEADLINE_EXCEEDED: 1}


def test_who_expired_may_come_back(tmp_path: Path) -> None:
    entries = [request(0, 100, 300), request(0.1, 100, 5, queue_timeout=0.5)]
    path = trace(tmp_path / "t.jsonl", *entries)
    plan = scenario(trace=path, scheduler=ONE_AT_A_TIME, retries=5)
    total = checked(plan).ledger.total()
    assert (total.finished, total.expired) == (2, 0)
    assert max(total.ttft) > 0.5


def test_who_takes_too_long_is_ended(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", request(0, 100, 400, timeout=0.5), request(0, 100, 5))
    fleet, result = outcome(path, retries=3)
    assert (result.all.finished, result.all.timed_out) == (1, 1)
    assert 5 < fleet.ledger.total().output_tokens < 400, "it had some of its tokens"
    assert not fleet.ledger.refusals, "nobody is asked to come back for it"
    assert fleet.ledger.ended < 1.0


def test_a_queue_too_long_for_its_deadline_refuses_at_once(tmp_path: Path) -> None:
    limits = policies(tmp_path / "p.json", {"classes": {"interactive_paid": {"queue_timeout": 2.0}}})
    crowd = scenario(requests=240, rate=40.0, output_tokens=100, scheduler={"max_num_seqs": 8, "policies": limits})
    fleet = checked(crowd)
    total = fleet.ledger.total()
    assert fleet.ledger.refusals[ErrorCode.OVERLOADED] == total.refused > 20
    assert max(total.queued) <= 2.0, "whoever was taken started in time"
    assert total.finished > 80


def test_policies_bound_a_class(tmp_path: Path) -> None:
    limits = {"classes": {"batch": {"timeout": 0.4}, "interactive_paid": {"max_total_tokens": 120}}}
    entries = [request(0, 100, 400, **{"class": "batch"}), request(0, 100, 400), request(0, 120, 5)]
    path = trace(tmp_path / "t.jsonl", *entries)
    fleet, result = outcome(path, scheduler={"policies": policies(tmp_path / "p.json", limits)})
    assert result.classes["batch"].timed_out == 1
    paid = result.classes["interactive_paid"]
    assert (paid.finished, paid.refused) == (1, 1), "one is cut to its budget, one has a prompt that fills it"
    tally = next(tally for (_, name, _), tally in fleet.ledger.tallies.items() if name == "interactive_paid")
    assert tally.output_tokens == 20


def test_a_request_beyond_its_tenants_pages_is_refused_and_stays_away(tmp_path: Path) -> None:
    limits = {"tenants": {"small": {"kv_share": 0.1, "kv_cap": 0.1}}}
    entries = [request(0, 500, 100, tenant="small"), request(0, 500, 100, tenant="large")]
    path = trace(tmp_path / "t.jsonl", *entries)
    scheduler = {"policies": policies(tmp_path / "p.json", limits)}
    fleet, result = outcome(path, scheduler=scheduler, replica={"num_pages": 120}, retries=3)
    assert (result.tenants["small"].refused, result.tenants["large"].finished) == (1, 1)
    assert fleet.ledger.retries == 0


def test_tenants_share_no_prefixes(tmp_path: Path) -> None:
    entries = [request(at, 300, 2, prefix=0, prefix_tokens=256, tenant="ab"[at % 2]) for at in range(6)]
    fleet, _ = outcome(trace(tmp_path / "t.jsonl", *entries))
    assert fleet.totals.hits == 4 * 256, "each tenant computes the prefix once"


def test_preemptions_are_told(tmp_path: Path) -> None:
    tight = {"num_pages": 120, "prefix_caching": False}
    load: dict[str, Any] = {"requests": 80, "rate": 60.0, "prompt_tokens": 200, "output_tokens": 100}
    eager = {"growth_reserve": 0.0}
    plain = scenario(replica=tight, scheduler=eager, **load)
    fleet = checked(plain)
    totals, engines = fleet.totals, report(plain, fleet).engines
    assert totals.preemptions > 0
    assert totals.swapped == 0
    assert totals.recomputed == totals.preempted_tokens > 0, "without a prefix cache all that was lost is computed again"
    assert totals.preempted_pages >= totals.preempted_tokens / 16
    assert (engines.preemptions, engines.preempted_tokens) == (totals.preemptions, totals.preempted_tokens)
    counted = fleet.timeline.series(["preemptions"])["preemptions"]
    assert sum(value or 0.0 for value in counted) * fleet.timeline.width == pytest.approx(totals.preemptions)


def test_pages_are_swapped_where_that_is_faster() -> None:
    tight = {"num_pages": 120, "prefix_caching": False, "swap_gib": 1.0}
    load: dict[str, Any] = {
        "requests": 80,
        "rate": 60.0,
        "prompt_tokens": 200,
        "output_tokens": 100,
        "scheduler": {"growth_reserve": 0.0},
    }
    fast = checked(scenario(replica=tight, **load)).totals
    slow = checked(scenario(replica={**tight, "swap_gbps": 0.01}, **load)).totals
    assert fast.swapped > 0
    assert slow.swapped == 0 < slow.preemptions
    assert fast.recomputed < slow.recomputed


def test_expected_lengths_are_held_against_what_came(tmp_path: Path) -> None:
    entries = [request(0.5 * at, 50, 32) for at in range(40)]
    fleet, result = outcome(trace(tmp_path / "t.jsonl", *entries))
    assert fleet.totals.actual == 40 * 32
    assert result.engines.length_error == 0.0, "nothing is expected to be longer than its max_tokens"


def test_jains_index() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([]) == jain([0.0]) == 1.0


def watched(policies: Policies | None = None) -> Fairness:
    known = policies or Policies()
    return Fairness(1.0, 2.0, lambda tenant: known.of_tenant(tenant).weight)


def test_only_tenants_that_wait_throughout_are_compared() -> None:
    fairness = watched()
    fairness.enters("a", 0.0)
    fairness.enters("b", 0.0)
    fairness.enters("c", 1.5 * WINDOW_S)  # not from the beginning of the second window
    fairness.served("a", 10, 0, 1.2 * WINDOW_S)
    fairness.served("b", 0, 5, 1.4 * WINDOW_S)
    fairness.served("c", 1000, 0, 1.6 * WINDOW_S)
    assert fairness.index is None, "the window is not over, and in the first one nobody waited from its beginning on"
    fairness.leaves("b", 2.5 * WINDOW_S)
    assert fairness.index == pytest.approx(1.0)
    fairness.served("a", 7, 0, 2.6 * WINDOW_S)
    fairness.served("c", 1, 0, 2.6 * WINDOW_S)
    fairness.enters("b", 3.5 * WINDOW_S)
    assert fairness.index == pytest.approx((1.0 + jain([7.0, 1.0])) / 2)


def test_weights_are_what_tenants_should_get() -> None:
    weighted = watched(Policies(tenants={"a": TenantPolicy(weight=3.0)}))
    for tenant in "ab":
        weighted.enters(tenant, 0.0)
    weighted.served("a", 30, 0, 1.1 * WINDOW_S)
    weighted.served("b", 10, 0, 1.2 * WINDOW_S)
    weighted.enters("c", 2.0 * WINDOW_S)
    assert weighted.index == pytest.approx(1.0)


def test_a_tenant_that_sends_more_gets_no_more() -> None:
    settings = scenario(
        requests=600,
        rate=60.0,
        tenants="heavy=20,one=6,two=6",
        prompt_sigma=0.0,
        output_sigma=0.0,
        scheduler={"max_num_seqs": 8, "max_waiting": 10_000},
        replica={"prefix_caching": False},
        classes="batch=1",
    )
    result = report(settings, checked(settings))
    assert result.jain is not None
    assert result.jain > 0.98
    assert result.tenants["one"].ttft.p50 < result.tenants["heavy"].ttft.p50 / 2
