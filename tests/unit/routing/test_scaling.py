"""ScalingPolicy: enough replicas soon, no more than enough after a while, and never none, whatever it is told."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.config.scaling import ScalingSettings
from jaxserve.errors import ConfigError
from jaxserve.routing.scaling import FleetSample, ScalingPolicy

WORK = 1000.0
SMALL: dict[str, Any] = {"max_replicas": 20, "replica_work": WORK, "start_seconds": 10.0, "cooldown_seconds": 60.0}


def policy(**more: Any) -> ScalingPolicy:
    return ScalingPolicy(ScalingSettings(**{**SMALL, **more}))


def fleet(policy: ScalingPolicy, work: Callable[[float], float], seconds: int, ready: int = 1) -> list[int]:
    """Targets each second of a fleet that does what it is told: replicas take 10 seconds to start, and 5 to drain."""
    starting: deque[float] = deque()
    draining: deque[float] = deque()
    targets = []
    for now in range(seconds):
        while starting and starting[0] <= now:
            starting.popleft()
            ready += 1
        while draining and draining[0] <= now:
            draining.popleft()
        sample = FleetSample(
            time=float(now), ready=ready, starting=len(starting), draining=len(draining), work=work(float(now)), prefill_share=0.3
        )
        targets.append(policy.decide(sample).replicas)
        while ready + len(starting) < targets[-1]:
            starting.append(now + 10.0)
        while ready > 1 and ready + len(starting) > targets[-1]:
            ready -= 1
            draining.append(now + 5.0)
    return targets


def changes(targets: list[int]) -> int:
    return sum(old != new for old, new in pairwise(targets))


def test_a_fleet_has_what_its_work_needs_and_does_not_move() -> None:
    targets = fleet(policy(), lambda now: 4500.0, 600)
    assert targets[20] == 5
    assert set(targets[20:]) == {5}
    assert targets[0] == 2, "one sample asks for no more than twice what is there"


def test_noise_moves_nothing() -> None:
    random = Random(0)
    targets = fleet(policy(), lambda now: 7500.0 * random.uniform(0.95, 1.05), 1000, ready=10)
    assert set(targets[200:]) == {10}


def test_load_that_comes_and_goes_sooner_than_the_cooldown_does_not_swing() -> None:
    targets = fleet(policy(), lambda now: 9000.0 if now % 40 < 20 else 500.0, 1000)
    assert changes(targets[60:]) == 0
    assert targets[-1] >= 9


def test_a_day_is_followed_up_and_down_without_swings() -> None:
    """Up is at once; down takes a cooldown a step. One way each, and never too few."""

    def work(now: float) -> float:
        return 6000.0 + 5000.0 * math.sin(2.0 * math.pi * now / 4000.0)

    targets = fleet(policy(), work, 4000)
    crest, trough = targets.index(max(targets)), 3000
    assert targets[:crest] == sorted(targets[:crest])
    assert targets[crest:trough] == sorted(targets[crest:trough], reverse=True)
    assert all(target >= work(float(now)) / WORK for now, target in enumerate(targets) if now > 40)
    assert min(targets[trough:3200]) <= 3


def test_what_grows_is_met_before_it_is_there() -> None:
    def first(start_seconds: float) -> int:
        targets = fleet(policy(start_seconds=start_seconds), lambda now: 2500.0 + 20.0 * now, 200, ready=3)
        return targets.index(5)

    assert first(30.0) + 15 < first(0.0)


def test_growth_is_not_looked_at_where_there_is_no_horizon() -> None:
    def targets(**more: Any) -> list[int]:
        return fleet(policy(**more), lambda now: 2500.0 + 20.0 * now, 200, ready=3)

    assert targets(start_seconds=30.0, horizon_seconds=0.0) == targets(start_seconds=0.0)
    assert targets(start_seconds=0.0, horizon_seconds=30.0) == targets(start_seconds=30.0)
    assert targets(horizon_seconds=0.0) != targets()


def test_a_schedule_asks_for_replicas_and_leaves_them_to_the_cooldown() -> None:
    scaling = policy(spares=1)
    targets = [
        scaling.decide(FleetSample(time=float(now), ready=4, work=1500.0, least=6 if now < 50 else 0)) for now in range(0, 200, 5)
    ]
    assert (targets[0].replicas, targets[0].reason) == (6, "the schedule")
    assert {target.replicas for target in targets[:21]} == {6}
    assert min(target.replicas for target in targets) < 6
    assert policy().decide(FleetSample(time=0.0, ready=20, work=0.0, least=10**6)).replicas == 20


def test_replicas_that_are_being_started_are_not_asked_for_again() -> None:
    scaling = policy()
    targets = [
        scaling.decide(FleetSample(time=float(now), ready=4, starting=2 if now else 0, work=5500.0)).replicas for now in range(30)
    ]
    assert set(targets) == {6}


def test_prompts_that_wait_count_more() -> None:
    assert policy().decide(FleetSample(time=0.0, ready=4, work=4000.0, prefill_share=0.5)).replicas == 4
    waiting = policy().decide(FleetSample(time=0.0, ready=4, work=4000.0, prefill_share=0.75))
    assert (waiting.replicas, waiting.reason) == (6, "prompts that wait")


def test_broken_promises_ask_for_more_than_there_are_once() -> None:
    scaling = policy()
    assert scaling.decide(FleetSample(time=0.0, ready=4, work=3900.0, violations=0.02)).replicas == 4
    broken = scaling.decide(FleetSample(time=1.0, ready=4, work=3900.0, violations=0.03))
    assert (broken.replicas, broken.reason) == (6, "broken promises")
    assert scaling.decide(FleetSample(time=2.0, ready=4, starting=2, work=3900.0, violations=1.0)).replicas == 6


def test_promises_that_nobody_could_keep_cost_nothing() -> None:
    assert policy().decide(FleetSample(time=0.0, ready=4, work=900.0, violations=1.0)).replicas == 4


def test_spares_are_beyond_what_is_needed() -> None:
    assert set(fleet(policy(spares=2), lambda now: 2500.0, 200)[10:]) == {5}
    assert set(fleet(policy(spares=2), lambda now: 0.0, 200)[10:]) == {2}, "nothing is needed, and two are spare"


def test_fewer_are_wanted_step_by_step_and_while_none_drains() -> None:
    scaling = policy()
    targets = [scaling.decide(FleetSample(time=float(now), ready=16, work=100.0)) for now in range(0, 200, 10)]
    steps = [target.replicas for target in targets]
    assert steps[:6] == [16] * 6
    assert steps[6] == 12
    assert steps[12] == 9
    draining = policy()
    held = [draining.decide(FleetSample(time=float(now), ready=16, draining=1, work=100.0)) for now in range(0, 200, 10)]
    assert {target.replicas for target in held} == {16}
    assert held[-1].reason == "one drains"


def test_after_a_time_without_samples_nothing_goes_at_once() -> None:
    scaling = policy()
    for now in (0.0, 1.0, 1000.0, 1001.0):
        assert scaling.decide(FleetSample(time=now, ready=10, work=0.0)).replicas == 10


def test_a_fleet_whose_replicas_are_all_gone_keeps_its_target() -> None:
    scaling = policy()
    scaling.decide(FleetSample(time=0.0, ready=7, work=6500.0))
    assert scaling.decide(FleetSample(time=1.0, ready=0, work=0.0)).replicas == 7


NUMBERS = st.floats() | st.sampled_from([0.0, 1.0, 500.0, 5000.0])
COUNTS = st.integers(-(2**70), 2**70) | st.integers(0, 12)


@given(
    samples=st.lists(
        st.builds(
            FleetSample,
            time=NUMBERS,
            ready=COUNTS,
            starting=COUNTS,
            draining=COUNTS,
            work=NUMBERS,
            prefill_share=NUMBERS,
            violations=NUMBERS,
            least=COUNTS,
        ),
        max_size=40,
    ),
    fewest=st.integers(1, 3),
    spares=st.integers(0, 8),
)
@settings(max_examples=300, deadline=None)
def test_whatever_it_is_told_the_target_is_within_bounds(samples: list[FleetSample], fewest: int, spares: int) -> None:
    scaling = ScalingPolicy(ScalingSettings(min_replicas=fewest, max_replicas=8, spares=spares))
    before = scaling.target
    for sample in samples:
        target = scaling.decide(sample)
        assert fewest <= target.replicas == scaling.target <= 8
        if not (0.0 <= sample.work < math.inf and 0.0 <= sample.time < math.inf):
            assert target.replicas == before
        before = target.replicas
        assert len(scaling._needs) <= 8


def test_what_is_unknown_changes_nothing() -> None:
    scaling = policy()
    scaling.decide(FleetSample(time=5.0, ready=3, work=2500.0))
    for time, work in ((6.0, math.nan), (math.nan, 9000.0), (5.0, 9000.0), (4.0, 9000.0), (7.0, -1.0), (8.0, math.inf)):
        target = scaling.decide(FleetSample(time=time, ready=3, work=work))
        assert (target.replicas, target.reason) == (3, "nothing is known")
    unknown = FleetSample(time=6.0, ready=3, work=2500.0, prefill_share=math.nan, violations=math.nan)
    assert scaling.decide(unknown).replicas == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_replicas": 0}, "min_replicas must be at least 1"),
        ({"min_replicas": 9}, "at most max_replicas"),
        ({"max_replicas": 10**6}, "that at most 10000"),
        ({"spares": 9}, "spares must be from 0 to max_replicas"),
        ({"replica_work": math.nan}, "replica_work must be at least 1 and finite"),
        ({"cooldown_seconds": 0.0}, "cooldown_seconds must be at least 1"),
        ({"fullness": 1.5}, "fullness must be from 0.001 to 1"),
        ({"horizon_seconds": math.inf}, "horizon_seconds must be at least 0 and finite"),
        ({"start_seconds": -1.0}, "start_seconds must be at least 0"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ScalingSettings(**values)
