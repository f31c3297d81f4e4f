"""Fleets behind routers: the hashes that routers are told, what they make of them, and what the report says of replicas."""

from pathlib import Path
from typing import Any, get_args

import pytest

from jaxserve.engine.replicas import carried
from jaxserve.routing.make import RouterName
from jaxserve.routing.prefix_router import PrefixRouter
from jaxserve.routing.router import RoutingRequest
from jaxserve.simulate import main
from jaxserve.simulation.ledger import Record, Tally
from jaxserve.simulation.report import report
from jaxserve.simulation.routing import routing_request
from jaxserve.simulation.scenario import build
from jaxserve.types import ServiceClass
from jaxserve.workload.requests import WorkloadRequest
from tests.unit.simulation.support import checked, request, scenario, trace

SHARED: dict[str, Any] = {
    "requests": 240,
    "rate": 40.0,
    "prefixes": 12,
    "prefix_tokens": 1024,
    "prompt_tokens": 64,
    "output_tokens": 20,
    "scheduler": {"max_num_seqs": 64, "max_num_batched_tokens": 1024},
}


class Recording(PrefixRouter):
    """A PrefixRouter that keeps what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[RoutingRequest] = []

    def choose(self, request: RoutingRequest, *rest: Any, **more: Any) -> str | None:
        self.requests.append(request)
        return super().choose(request, *rest, **more)


def test_pages_have_the_names_that_caches_give_them(tmp_path: Path) -> None:
    entries = [
        request(0, 100, 2, prefix=0, prefix_tokens=64, tenant="a"),
        request(1, 100, 2, prefix=0, prefix_tokens=64, tenant="a", timeout=7.0),
        request(2, 100, 2, prefix=0, prefix_tokens=64, tenant="b"),
    ]
    router = Recording()
    fleet = build(scenario(trace=trace(tmp_path / "t.jsonl", *entries)), router=router)
    while fleet.step():
        pass
    replica = fleet._replicas[0]
    assert replica is not None
    for asked in router.requests:
        assert len(asked.pages) == 100 // 16
        assert all(page in replica._cache.prefixes for page in asked.pages)
    first, second, other = router.requests
    assert first.pages[:4] == second.pages[:4]
    assert first.pages[4] != second.pages[4]
    assert not set(other.pages) & set(first.pages), "tenants share nothing"
    assert (first.deadline, second.deadline) == (float("inf"), 8.0)


def test_front_ends_describe_requests_in_the_same_way() -> None:
    fleet = build(scenario())
    replica = fleet._replicas[0]
    assert replica is not None
    for number, prompt in enumerate((3, 16, 100)):
        asked = WorkloadRequest(number, 0.0, prompt, 20, ServiceClass.BATCH, tenant="a", prefix=0, prefix_tokens=2, timeout=7.0)
        record = Record(str(number), asked, Tally())
        live = carried.routing_request([replica._engine_request(record, 1.0)], fleet.spec.limits.page_size, 20.0)
        assert routing_request(record, fleet.spec, 1.0) == live


@pytest.mark.parametrize("router", get_args(RouterName))
def test_accounts_hold_behind_every_router(router: RouterName) -> None:
    fleet_of = {"replicas": 4, "router": router, "fail": "1@1.0-2.5,2@2.0", "num_pages": 400}
    settings = scenario(**SHARED, replica=fleet_of, tenants="a=3,b=1", retries=2)
    fleet = checked(settings)
    assert fleet.ledger.total().received == 240
    assert fleet.ledger.failovers > 0
    if isinstance(fleet._router, PrefixRouter):
        assert sum(fleet._router.work(name) for name in "013") == 0, "what was begun has ended"


def test_prompts_are_found_where_they_were_computed() -> None:
    rates, balance = {}, {}
    for router in get_args(RouterName):
        settings = scenario(**SHARED | {"output_tokens": 6}, replica={"replicas": 4, "router": router, "num_pages": 400})
        result = report(settings, checked(settings))
        rates[router], balance[router] = result.engines.prefix_hit_rate, result.balance.requests
    most = 1024 / (1024 + 64 * 1.4)
    assert rates["prefix"] > 0.85 * most
    assert rates["prefix"] > 1.25 * max(rates[name] for name in ("least_loaded", "round_robin", "random"))
    assert balance["round_robin"] == 1.0
    assert balance["prefix"] < 2.0


@pytest.mark.extended
def test_where_one_cache_cannot_hold_all_prompts_a_fleet_that_knows_does() -> None:
    """24 system prompts, and room for about three a replica: 8 replicas hold them all, if each keeps its own."""
    small = {**SHARED, "prefixes": 24, "output_tokens": 6}
    rates = {}
    for router in ("prefix", "random", "round_robin"):
        settings = scenario(**small, replica={"replicas": 8, "router": router, "num_pages": 260})
        rates[router] = report(settings, checked(settings)).engines.prefix_hit_rate
    assert rates["prefix"] > 2.0 * max(rates["random"], rates["round_robin"])
    assert rates["prefix"] > 0.6


def test_the_report_tells_what_each_replica_did() -> None:
    settings = scenario(requests=41, rate=40.0, replica={"replicas": 2, "router": "round_robin"})
    result = report(settings, checked(settings))
    assert [one.requests for one in result.replicas] == [21, 20]
    assert sum(one.tokens for one in result.replicas) == result.engines.tokens
    assert result.balance.requests == 21 / 20.5
    assert result.balance.busy_s == pytest.approx(
        max(one.busy_s for one in result.replicas) * 2 / sum(one.busy_s for one in result.replicas)
    )


def test_the_command_routes_and_tells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--requests", "20", "--rate", "20", "--replicas", "3", "--router", "prefix"]) == 0
    text = capsys.readouterr().out
    assert "prefix: the busiest replica has" in text
    assert "Replicas" in text
    assert main(["--requests", "5", "--router", "fast"]) == 2
    assert "invalid choice: 'fast'" in capsys.readouterr().err
