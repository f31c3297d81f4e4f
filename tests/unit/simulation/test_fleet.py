"""Whole simulations: latency of one request, accounts, preemption, overload, failures of replicas."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from jaxserve.config.fields import SchedulerConfig
from jaxserve.errors import ConfigError
from jaxserve.simulation.costs import CostModel
from jaxserve.simulation.fleet import RetryPolicy
from jaxserve.simulation.report import report
from jaxserve.simulation.scenario import Scenario, build, replica_spec, simulate
from jaxserve.simulation.settings import ReplicaConfig
from jaxserve.types import ServiceClass
from tests.unit.simulation.support import checked, request, scenario, trace

TIGHT = {"num_pages": 120}  # 1,904 tokens of KV


def step_seconds(settings: Scenario, *rows: tuple[int, int]) -> float:
    spec = replica_spec(settings.replica, settings.scheduler)
    model = CostModel(spec.layout, spec.calibration, spec.grid(spec.limits))
    counts, lengths = (np.array(values, np.int64) for values in zip(*rows, strict=True))
    return model.cost(counts, lengths).total


@pytest.mark.parametrize("overlap", [True, False])
def test_one_request_alone_waits_for_nothing(tmp_path: Path, overlap: bool) -> None:
    path = trace(tmp_path / "t.jsonl", request(2.0, 300, 4))
    settings = scenario(trace=path, scheduler={"overlap": overlap})
    fleet = checked(settings)
    total = fleet.ledger.total()
    prefill = step_seconds(settings, (300, 300))
    decodes = [step_seconds(settings, (1, length)) for length in (301, 302, 303)]
    assert list(total.ttft) == pytest.approx([prefill])
    assert total.itl.percentiles().mean == pytest.approx(sum(decodes) / 3)
    assert list(total.e2e) == pytest.approx([prefill + sum(decodes)])
    assert fleet.totals.steps == 4
    assert fleet.ledger.ended == pytest.approx(2.0 + prefill + sum(decodes))


def test_long_prompt_takes_a_step_a_chunk(tmp_path: Path) -> None:
    settings = scenario(trace=trace(tmp_path / "t.jsonl", request(0, 1200, 1)))
    chunks = [(512, 512), (512, 1024), (176, 1200)]
    total = checked(settings).ledger.total()
    assert list(total.ttft) == pytest.approx([sum(step_seconds(settings, chunk) for chunk in chunks)])


def test_overlap_hides_the_hosts_time(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", request(0, 100, 50))
    gaps = {}
    for overlap in (True, False):
        settings = scenario(trace=path, replica={"host_us": 1000.0}, scheduler={"overlap": overlap})
        gaps[overlap] = checked(settings).ledger.total().itl.percentiles().p50
    assert gaps[False] - gaps[True] == pytest.approx(1e-3, rel=0.05)


def test_every_token_is_counted_once() -> None:
    settings = scenario(requests=60, rate=40.0, prompt_tokens=200, output_tokens=60, replica={"prefix_caching": False})
    fleet = checked(settings)
    total = fleet.ledger.total()
    assert total.finished == 60
    wanted = list(fleet_requests(settings))
    assert total.output_tokens == sum(item.output_tokens for item in wanted)
    assert fleet.totals.tokens == sum(item.prompt_tokens + item.output_tokens - 1 for item in wanted)
    assert total.itl.count == total.output_tokens - 60
    assert fleet.totals.recomputed == fleet.totals.preemptions == 0


def fleet_requests(settings: Scenario):
    from jaxserve.workload.generate import generate

    limits = replica_spec(settings.replica, settings.scheduler).limits
    return generate(settings.workload, limits.max_model_len, ServiceClass.INTERACTIVE_PAID)


def test_preempted_tokens_are_told_apart() -> None:
    """Computed tokens are those that were needed and those that were computed again: nothing else."""
    tight = {**TIGHT, "prefix_caching": False}
    patient = {"ttft_target_ms": 0.0}
    settings = scenario(requests=80, rate=60.0, prompt_tokens=200, output_tokens=100, replica=tight, scheduler=patient)
    fleet = checked(settings)
    total = fleet.ledger.total()
    assert total.finished == 80
    assert fleet.totals.preemptions > 0
    needed = sum(item.prompt_tokens + item.output_tokens - 1 for item in fleet_requests(settings))
    assert fleet.totals.tokens == needed + fleet.totals.recomputed
    assert total.output_tokens == sum(item.output_tokens for item in fleet_requests(settings))
    assert 0.9 < fleet.totals.max_kv <= 1.0


def test_shared_prefix_is_computed_once(tmp_path: Path) -> None:
    entries = [request(at, 300, 2, prefix=0, prefix_tokens=256) for at in range(5)]
    fleet = checked(scenario(trace=trace(tmp_path / "t.jsonl", *entries)))
    assert (fleet.totals.queried, fleet.totals.hits) == (5 * 300, 4 * 256)
    assert fleet.totals.tokens == 5 * 301 - 4 * 256


@pytest.mark.extended
def test_same_scenario_same_report() -> None:
    def outcome(seed: int) -> dict[str, Any]:
        settings = scenario(
            requests=120,
            rate=80.0,
            output_tokens=40,
            arrivals="spike",
            retries=2,
            seed=seed,
            replica={**TIGHT, "replicas": 2, "fail": "1@0.5-0.9"},
            scheduler={"max_waiting": 5},
        )
        result = report(settings, checked(settings)).as_json()
        del result["scenario"]
        return result

    assert outcome(0) == outcome(0)
    assert outcome(0) != outcome(1)


def test_spike_builds_a_queue_that_drains() -> None:
    fleet = checked(scenario(requests=400, rate=20.0, arrivals="spike", peak=20.0))
    queue = [value or 0.0 for value in fleet.timeline.series(["queue"])["queue"]]
    width = fleet.timeline.width
    before, after = queue[: int(6.6 / width)], queue[int(6.6 / width) :]
    assert max(before) < 10 < 40 < max(after)
    assert queue[-1] == 0.0
    assert fleet.ledger.total().finished == 400


def test_full_queue_refuses_and_patient_clients_come_back() -> None:
    overload: dict[str, Any] = {
        "requests": 300,
        "rate": 300.0,
        "output_tokens": 60,
        "scheduler": {"max_waiting": 8, "max_num_seqs": 8},
    }
    impatient = checked(scenario(**overload)).ledger
    patient = checked(scenario(**overload, retries=8)).ledger
    assert sum(impatient.refusals.values()) == impatient.total().refused > 50
    assert impatient.retries == 0
    assert patient.retries > 0
    assert sum(patient.refusals.values()) == patient.retries + patient.total().refused
    assert patient.total().finished > impatient.total().finished
    assert max(patient.total().ttft) > 1.0, "the wait before a retry is the client's wait"


def test_waits_double_and_are_at_least_what_the_server_asks() -> None:
    policy, random = RetryPolicy(5, 2.0), Random(0)
    waits = {
        (attempt, asked): [policy.wait(attempt, asked, random) for _ in range(200)] for attempt in (1, 3) for asked in (0.0, 30.0)
    }
    for (attempt, asked), found in waits.items():
        least = max(asked, 2.0 * 2 ** (attempt - 1))
        assert least <= min(found) < 1.05 * least
        assert 1.95 * least < max(found) < 2 * least


def test_bounded_queue_is_never_longer_than_its_bound() -> None:
    fleet = checked(scenario(requests=300, rate=300.0, scheduler={"max_waiting": 8, "max_num_seqs": 8}))
    assert fleet.totals.max_queue <= 8
    assert fleet.totals.max_rows == 8


def test_router_spreads_the_load() -> None:
    loaded: dict[str, Any] = {"requests": 200, "rate": 60.0, "scheduler": {"max_num_seqs": 8}}
    one = checked(scenario(**loaded)).ledger.total()
    four = checked(scenario(**loaded, replica={"replicas": 4})).ledger.total()
    assert np.percentile(four.ttft, 99) < np.percentile(one.ttft, 99) / 3


def test_requests_of_a_failed_replica_go_on_elsewhere() -> None:
    settings = scenario(requests=100, rate=50.0, replica={"replicas": 2, "fail": "0@1.0", "prefix_caching": False})
    fleet = checked(settings)
    total, wanted = fleet.ledger.total(), list(fleet_requests(settings))
    assert fleet.ledger.failovers > 5
    assert (total.finished, total.failed) == (100, 0)
    assert total.output_tokens == sum(item.output_tokens for item in wanted), "no token is sent twice"
    assert total.itl.count == total.output_tokens - 100
    needed = sum(item.prompt_tokens + item.output_tokens - 1 for item in wanted)
    assert fleet.totals.tokens == needed + fleet.totals.lost
    assert fleet.totals.lost > 0


def test_a_request_goes_on_behind_the_tokens_that_it_has(tmp_path: Path) -> None:
    """One step computes prompt and tokens again; no token is chosen twice, and its time limit is that of its arrival."""
    path = trace(tmp_path / "t.jsonl", request(0, 100, 400, timeout=30.0))
    alone = checked(scenario(trace=path))
    half = alone.ledger.total().e2e[0] / 2
    failing: dict[str, Any] = {"replica": {"replicas": 2, "fail": f"0@{half}"}}
    fleet = checked(scenario(trace=path, **failing))
    total = fleet.ledger.total()
    assert (fleet.ledger.failovers, total.finished, total.output_tokens) == (1, 1, 400)
    assert 200 < fleet.totals.lost < 400
    assert alone.totals.steps < fleet.totals.steps <= alone.totals.steps + 3
    assert fleet.totals.tokens == alone.totals.tokens + fleet.totals.lost
    late = checked(scenario(trace=trace(tmp_path / "l.jsonl", request(0, 100, 400, timeout=1.2 * half)), **failing))
    assert (late.ledger.total().timed_out, late.ledger.failovers) == (1, 1)


def test_without_a_replica_requests_fail_until_it_is_back(tmp_path: Path) -> None:
    entries = [request(at, 100, 100) for at in (0.0, 1.0, 1.5, 3.0)]
    fleet = checked(scenario(trace=trace(tmp_path / "t.jsonl", *entries), replica={"fail": "0@1.2-2.0"}))
    total = fleet.ledger.total()
    assert (total.finished, total.failed) == (2, 2)
    assert 200 < total.output_tokens < 300, "the one that ran had some of its tokens"


def test_turns_that_do_nothing_do_not_go_back_in_time() -> None:
    """Clocks are moved by rounded differences; with this seed one stops an ulp before the event that moved it."""
    total = checked(scenario(requests=3, rate=5.0, prompt_tokens=1, output_tokens=1, seed=11)).ledger.total()
    assert total.finished == 3


def test_outage_after_the_end_does_not_prolong_the_run(tmp_path: Path) -> None:
    settings = scenario(trace=trace(tmp_path / "t.jsonl", request(0, 10, 2)), replica={"fail": "0@500-600"})
    assert checked(settings).now < 1.0


def test_goodput_counts_requests_within_the_slo(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", request(0, 100, 10, tenant="short"), request(1, 6000, 10, tenant="long"))
    settings = scenario(trace=path, slo={"slo_ttft_ms": 50.0})
    result = report(settings, checked(settings))
    assert (result.tenants["short"].slo_share, result.tenants["long"].slo_share, result.all.slo_share) == (1.0, 0.0, 0.5)
    assert result.all.goodput_tokens_per_s == pytest.approx(10 / result.seconds)
    assert list(result.tiers) == ["up to 2K", "2K to 8K"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "llama-9"}, "unknown model 'llama-9'"),
        ({"hardware": "abacus"}, "unknown hardware 'abacus'"),
        ({"model": "llama-3-70b"}, "GB short"),
        ({"tp": 3}, "tp 3 does not divide"),
        ({"max_model_len": 10_000}, "the model was made for 8192"),
        ({"max_model_len": 5000, "num_pages": 100}, "but the KV cache holds 1584"),
        ({"num_pages": 10**6}, "num_pages is 1000000 of 16 tokens"),
    ],
)
def test_impossible_replicas_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replica_spec(ReplicaConfig(**settings), SchedulerConfig())


def test_prompt_that_can_never_fit_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", request(0, 10, 10), request(1, 1800, 200))
    with pytest.raises(ConfigError, match=r"t.jsonl:2: prompt_tokens 1800 [+] output_tokens 200 is more than the context's 1904"):
        build(scenario(trace=path, replica=TIGHT))


def test_simulate_runs_to_the_end() -> None:
    assert simulate(scenario(requests=5)).ledger.total().finished == 5


@pytest.mark.extended
def test_goodput_does_not_collapse_under_four_and_ten_times_the_load() -> None:
    """About 17 requests a second are served. Patient clients, default settings; without load shedding it is a twentieth."""
    good = {}
    for rate in (16.0, 64.0, 160.0):
        settings = scenario(
            requests=int(20 * rate),
            rate=rate,
            prompt_tokens=600,
            output_tokens=200,
            scheduler={"max_num_seqs": 32},
            slo={"slo_ttft_ms": 1000.0, "slo_itl_ms": 100.0},
        )
        good[rate] = simulate(settings).ledger.total().good_requests
    assert good[64.0] > 0.85 * good[16.0]
    assert good[160.0] > 0.8 * good[16.0], "two of the twenty seconds pass before it is noticed"
