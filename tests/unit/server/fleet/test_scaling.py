"""What Ray Serve's controller is told: the policy's target, from what replicas say of themselves."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from jaxserve.config.scaling import ScalingSettings
from jaxserve.config.schedule import Schedule
from jaxserve.routing.demand import Demand
from server.fleet.scaling import FRESH_SECONDS, PoolScaler, as_stats

SETTINGS = ScalingSettings(min_replicas=1, max_replicas=8, replica_work=1000.0, start_seconds=10.0, cooldown_seconds=20.0)
POOL = "pool default"
NOON = 12 * 3600.0


class Point(NamedTuple):
    timestamp: float
    value: Any


@dataclass
class Context:
    deployment_name: str
    target_num_replicas: int
    running_replicas: list[str]
    raw_metrics: dict[str, dict[str, list[Point]]]


class Controller:
    """A controller whose replicas start and stop at once, one clock that all of them read, and a PoolScaler."""

    def __init__(self, settings: ScalingSettings = SETTINGS, schedule: Schedule | None = None, ready: int = 1) -> None:
        self.now = 0.0
        self.ready = ready
        self.scaler = PoolScaler(
            asdict(settings), (schedule or Schedule()).as_json(), 3.0, now=lambda: self.now, unix=lambda: NOON + self.now
        )

    def context(self, stats: list[dict[str, Any]]) -> Context:
        replicas = [str(number) for number in range(self.ready)]
        metrics: dict[str, dict[str, list[Point]]] = {}
        for replica, said in zip(replicas, stats, strict=False):
            for name, value in said.items():
                metrics.setdefault(name, {})[replica] = [Point(self.now, value)]
        return Context(POOL, self.ready, replicas, metrics)

    def tick(self, *stats: dict[str, Any], seconds: float = 1.0) -> int:
        """The next decision, which is obeyed."""
        self.now += seconds
        self.ready, _ = self.scaler(self.context(list(stats)))
        return self.ready


def busy(work: float) -> dict[str, float]:
    return as_stats(Demand(work, 0.2 * work, 100.0, 1.0))


def test_work_of_all_replicas_says_how_many_there_are() -> None:
    controller = Controller(ready=2)
    assert controller.tick(busy(2000.0), busy(1500.0)) == 4
    assert {controller.tick(*[busy(875.0)] * 4) for _ in range(30)} == {4}


def test_a_replica_that_has_said_nothing_yet_has_nothing_to_do() -> None:
    controller = Controller()
    assert controller.tick(busy(1500.0)) == 2
    assert controller.tick(busy(1500.0)) == 2


def test_fewer_after_the_cooldown_step_by_step() -> None:
    controller = Controller(ready=8)
    targets = [controller.tick(*[busy(10.0)] * controller.ready) for _ in range(200)]
    assert targets[18] == 8
    assert targets == sorted(targets, reverse=True)
    assert targets[-1] == 1


def test_what_was_given_up_drains_for_a_while() -> None:
    """Ray does not say what drains, so a pool that would take away the next one waits for as long as a drain may take."""
    controller = Controller(ScalingSettings(max_replicas=8, replica_work=1000.0, cooldown_seconds=1.0), ready=4)
    targets = [controller.tick(*[busy(0.0)] * controller.ready) for _ in range(20)]
    steps = [at for at in range(1, 20) if targets[at] < targets[at - 1]]
    assert targets[-1] == 1
    assert min(after - before for before, after in pairwise(steps)) >= 3


def test_a_new_scaler_begins_with_what_is_there() -> None:
    """After a restart of the controller nothing is known, not even words of replicas."""
    controller = Controller(ready=5)
    assert [controller.tick() for _ in range(5)] == [5] * 5
    assert controller.tick(*[busy(100.0)] * 5) == 5
    assert {controller.tick(*[busy(100.0)] * 5) for _ in range(15)} == {5}


def test_a_new_scaler_does_not_begin_with_words_that_add_up_to_infinity() -> None:
    controller = Controller(ready=5)
    assert [controller.tick(*[busy(1e308)] * 5) for _ in range(3)] == [5] * 3
    assert controller.tick(*[busy(900.0)] * 5) == 5


def test_one_decision_a_second() -> None:
    controller = Controller()
    assert controller.tick(busy(900.0)) == 1
    assert controller.tick(busy(9000.0), seconds=0.1) == 1
    assert controller.tick(busy(9000.0), seconds=0.9) == 2


def test_words_that_are_old_do_not_count() -> None:
    controller = Controller(ready=3)
    assert controller.tick(*[busy(900.0)] * 3) == 3
    last = controller.context([busy(900.0)] * 3)
    for _ in range(int(FRESH_SECONDS) + 60):
        controller.now += 1.0
        assert controller.scaler(last)[0] == 3, "nobody says anything new: nothing changes"


def test_a_schedule_holds_whatever_there_is_to_do() -> None:
    controller = Controller(schedule=Schedule.of([{"from": "12:00", "to": "12:01", "min": 4}]))
    targets = [controller.tick(*[busy(0.0)] * controller.ready) for _ in range(200)]
    assert targets[0] == 2
    assert set(targets[2:59]) == {4}
    assert targets[-1] == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, 1e308, None, "many"])
def test_hostile_words_neither_take_all_away_nor_explode(bad: Any) -> None:
    controller = Controller(ready=3)
    good = busy(900.0)
    for _ in range(100):
        words = [{**good, name: bad} for name in good]
        assert 1 <= controller.tick(*words[: controller.ready]) <= 8
    controller = Controller(ready=3)
    controller.tick(good, good, good)
    for _ in range(10):
        assert controller.tick({**good, "broken": bad}, good, good) in (3, 4)
        assert controller.tick({}, good, good, {"work": 1.0}) in (3, 4)
