"""Simulated fleets that scale: the product's policy on the virtual clock, with starts, drains and what they cost."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jaxserve.errors import ConfigError
from jaxserve.simulate import main
from jaxserve.simulation.ledger import ENDS
from jaxserve.simulation.report import Report, report
from jaxserve.simulation.scaling import parse_scaling
from jaxserve.simulation.scenario import Scenario, build, simulate
from tests.unit.simulation.support import request, scenario, trace

START, COOLDOWN = 5.0, 20.0
SCALES = f"min=1,max=4,replica-work=8000,start-seconds={START},trend-seconds=5,cooldown-seconds={COOLDOWN}"
SIZES: dict[str, Any] = {"prompt_sigma": 0.0, "output_sigma": 0.0}
SPIKE: dict[str, Any] = {
    **SIZES,
    **{"requests": 500, "rate": 1.0, "arrivals": "spike", "peak": 60.0, "spike_at_s": 20.0, "spike_for_s": 6.0},
    **{"prompt_tokens": 1024, "output_tokens": 8},
}
DAY: dict[str, Any] = {
    **SIZES,
    **{"requests": 400, "rate": 7.0, "arrivals": "diurnal", "peak": 20.0, "prompt_tokens": 3000, "output_tokens": 16},
}
ENGINE = {"max_num_seqs": 16, "max_num_batched_tokens": 1024}


def scaling(autoscale: str = SCALES, **workload: Any) -> Scenario:
    return scenario(**(workload or SPIKE), scheduler=ENGINE, replica={"autoscale": autoscale})


def told(settings: Scenario) -> Report:
    return report(settings, simulate(settings))


@pytest.fixture(scope="module")
def spike() -> tuple[Report, float]:
    """The report, and the seconds that places were taken: the sum of the levels, starts and drains included."""
    settings = scaling()
    fleet = build(settings)
    seconds = last = 0.0
    taken = 1
    while fleet.step():
        fleet.ledger.check()
        assert fleet.scaling is not None
        assert fleet.now >= last
        seconds += (fleet.now - last) * taken
        taken, last = sum(one is not None for one in fleet._replicas) + len(fleet.scaling.starting), fleet.now
    total = fleet.ledger.total()
    assert total.received == sum(getattr(total, end) for end in ENDS)
    assert not fleet.ledger.active
    return report(settings, fleet), seconds


@pytest.fixture(scope="module")
def spiked(spike: tuple[Report, float]) -> Report:
    return spike[0]


def test_replicas_come_with_a_spike_and_go_after_it(spiked: Report) -> None:
    wanted = [(one.time, one.replicas) for one in spiked.usage.decisions]
    up = [time for time, replicas in wanted if replicas == 4]
    assert 20.0 < up[0] < 25.0
    assert wanted[-1][1] == 1
    down = [after[0] for before, after in pairwise(wanted) if after[1] < before[1]]
    assert down[0] > 26.0 + COOLDOWN
    assert min(after - before for before, after in pairwise(down)) >= COOLDOWN
    assert {one.reason for one in spiked.usage.decisions} <= {
        *("growth", "work", "prompts that wait", "broken promises", "more than needed"),
    }


def test_a_replica_takes_requests_once_it_has_started(spiked: Report) -> None:
    """The level over time, and what the others did."""
    first = next(one.time for one in spiked.usage.decisions if one.replicas > 1)
    ready = spiked.series["ready"]
    width = spiked.bin_s
    before = [value for at, value in enumerate(ready) if at * width < first + START - width and value is not None]
    assert set(before) == {1.0}
    assert max(value for value in ready if value is not None) == 4.0
    assert min(one.requests for one in spiked.replicas) > 0


def test_nothing_is_lost_where_replicas_go(spiked: Report) -> None:
    everybody = spiked.all
    assert everybody.failed == everybody.timed_out == 0
    assert spiked.failovers == 0, "drains end before their time is over"
    assert everybody.received == 500


def test_gpu_hours_are_those_that_places_were_taken(spike: tuple[Report, float]) -> None:
    spiked, seconds = spike
    usage = spiked.usage
    assert usage.replica_hours * 3600.0 == pytest.approx(seconds, rel=1e-6)
    assert usage.gpu_hours == usage.replica_hours
    assert 1.0 < usage.mean_replicas < 4.0
    tokens = spiked.all.output_tokens_per_s * spiked.seconds
    assert usage.usd_per_m_tokens == pytest.approx(usage.usd / tokens * 1e6)


def test_a_fleet_that_does_not_scale_uses_all_of_its_gpus_always() -> None:
    found = told(scenario(**{**SPIKE, "requests": 50}, scheduler=ENGINE, replica={"replicas": 2, "tp": 2, "price": 3.0}))
    assert found.usage.gpu_hours == pytest.approx(found.seconds / 3600.0 * 4)
    assert found.usage.usd == pytest.approx(found.usage.gpu_hours * 3.0)
    assert found.usage.decisions == []
    assert "ready" not in found.series


def test_the_same_scenario_scales_the_same_way(spiked: Report) -> None:
    assert told(scaling()) == spiked


@pytest.mark.extended
def test_growth_asks_sooner() -> None:
    """A day: with a horizon replicas are asked for before their work is there, and promises are kept that are broken without."""
    ahead, behind = told(scaling(**DAY)), told(scaling(SCALES + ",horizon-seconds=0", **DAY))
    assert ahead.usage.decisions[0].time < behind.usage.decisions[0].time
    assert ahead.all.late < behind.all.late
    assert "growth" not in {one.reason for one in behind.usage.decisions}


@pytest.mark.extended
def test_a_drain_that_takes_too_long_ends_and_its_requests_go_on(tmp_path: Path) -> None:
    """Prompts for three replicas, and then three outputs that take longer than a drain may."""
    prompts = [request(number / 30, 4000, 1) for number in range(90)]
    outputs = [request(2.5 + number / 10, 64, 7900) for number in range(3)]
    settings = scenario(
        trace=trace(tmp_path / "trace.jsonl", *sorted(prompts + outputs, key=lambda one: one["arrival"])),
        scheduler={"max_num_seqs": 16, "max_num_batched_tokens": 4096, "ttft_target_ms": 0.0},
        replica={"autoscale": "min=1,max=3,replica-work=60000,tolerated=1,start-seconds=0,trend-seconds=1,cooldown-seconds=1"},
    )
    found = told(settings)
    assert found.all.finished == 93
    assert found.failovers == 1


def test_a_fleet_is_never_without_a_replica_whatever_is_asked() -> None:
    fleet = build(scaling("min=1,max=6,replica-work=1,start-seconds=3,trend-seconds=1,cooldown-seconds=1"))
    assert fleet.scaling is not None
    sizes = set()
    while fleet.step():
        starting, draining = fleet.scaling.starting, fleet.scaling.draining
        there = {one.index for one in fleet._replicas if one is not None}
        assert there - set(draining)
        assert set(draining) <= there
        assert not set(starting) & there
        sizes.add(len(there) + len(starting))
    assert (min(sizes), max(sizes)) == (1, 6)


def test_names_are_those_of_a_fleets_file() -> None:
    found = parse_scaling("min=2,max=9,replica_work=1e4,usual-prefill=0.25,horizon-seconds=0")
    assert found is not None
    assert (found.min_replicas, found.max_replicas, found.replica_work) == (2, 9, 1e4)
    assert (found.usual_prefill, found.horizon_seconds, found.horizon) == (0.25, 0.0, 0.0)
    assert parse_scaling(None) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"autoscale": "min=1"}, "autoscale must say max"),
        ({"autoscale": "max=three"}, "autoscale must be NAME=NUMBER, comma-separated, got 'max=three'"),
        ({"autoscale": "max"}, "autoscale must be NAME=NUMBER"),
        ({"autoscale": "max=2,speed=1"}, "autoscale: unknown setting 'speed'; known are min, max"),
        ({"autoscale": "max=2.5"}, "autoscale: max must be an integer, got 2.5"),
        ({"autoscale": "max=2,max=3"}, "autoscale says max twice"),
        ({"autoscale": "max=2,min=3"}, "autoscale: min_replicas must be at least 1 and at most max_replicas"),
        ({"autoscale": "max=2,replica-work=nan"}, "autoscale: replica_work must be at least 1 and finite"),
        ({"autoscale": "max=2", "replicas": 2}, "replicas is for fleets that do not scale"),
        ({"autoscale": "max=2", "fail": "0@1"}, "fail is for fleets that do not scale"),
        ({"price": -1.0}, "price must be at least 0"),
    ],
)
def test_what_is_wrong_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scenario(replica=settings)


def test_the_command_says_what_was_wanted_and_what_it_cost(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--requests", "200", "--rate", "40", "--autoscale", "min=1,max=3,replica-work=2000,start-seconds=1", "--price", "2"]
    assert main(flags) == 0
    said = capsys.readouterr().out
    assert "1 to 3 replicas" in said
    assert "Replicas wanted" in said
    assert "a million output tokens" in said
