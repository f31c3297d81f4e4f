"""Verdicts on engines: by the age of their pulse, and by how long their step should take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxserve.engine.activity import Activity, StepTimes
from jaxserve.engine.remote.pulse import LOOK_SECONDS, Watch
from jaxserve.engine.remote.reports import Pulse
from jaxserve.step.plan import Plan

HANG = 120.0
SLOW, QUICK, UNKNOWN = 8.0, 0.02, None
NEVER = float("inf")


def killed(
    expected: float | None,
    *,
    pulses_stop: float = NEVER,
    step_ends: float = NEVER,
    held_up: tuple[float, float] = (NEVER, NEVER),
    hang: float = HANG,
) -> tuple[float, str] | None:
    """When an engine that begins a step at 0 is killed within 300 s, and why.

    Args:
        pulses_stop, step_ends: seconds.
        held_up: from when to when nobody looks.
    """
    watch, now, pulses, pulse = Watch(hang), 0.0, 0, Pulse(0.0, Activity(0.0, expected))
    while now < 300.0:
        if not held_up[0] <= now < held_up[1]:
            found = watch.look(pulses, pulse, now)
            if found is not None:
                return now, found[0]
        now += LOOK_SECONDS
        if now < pulses_stop:
            pulses += 1
            began = now if now >= step_ends else 0.0
            pulse = Pulse(began, Activity(began, expected))
    return None


@pytest.mark.parametrize(
    ("expected", "given", "when", "words"),
    [
        (QUICK, {"step_ends": 8.0}, None, ""),  # a healthy step, longer than all before it
        (SLOW, {"step_ends": 70.0}, None, ""),
        (UNKNOWN, {"step_ends": 100.0}, None, ""),  # a late compilation
        (QUICK, {}, 30.0, "step took 30 s, and about 0.0 s were expected"),
        (SLOW, {}, 80.0, "step took 80 s"),
        (60.0, {}, HANG, "did not turn for 120 s"),
        (UNKNOWN, {}, HANG, "did not turn for 120 s"),
        (QUICK, {"step_ends": 1.0, "pulses_stop": 5.0}, 14.5, "gave no pulse for 10 s"),  # stopped, or held by the GIL
        (UNKNOWN, {"pulses_stop": 5.0}, 14.5, "gave no pulse"),  # whatever it does
        (QUICK, {"step_ends": 1.0, "held_up": (5.0, 60.0)}, None, ""),  # the watcher was
        (QUICK, {"step_ends": 1.0, "held_up": (5.0, 60.0), "pulses_stop": 5.0}, 68.5, "gave no pulse"),
        (QUICK, {"pulses_stop": 5.0, "hang": 0.0}, None, ""),
        (UNKNOWN, {"hang": 3.0}, 3.0, "did not turn for"),
    ],
)
def test_what_ends_an_engine(expected: float | None, given: dict[str, Any], when: float | None, words: str) -> None:
    found = killed(expected, **given)
    if when is None:
        assert found is None
        return
    assert found is not None
    assert found[0] == pytest.approx(when, abs=2 * LOOK_SECONDS)
    assert words in found[1]


@pytest.mark.parametrize(
    ("activity", "now", "overdue", "known"),
    [
        (Activity(100.0, SLOW), 107.0, 0.0, True),
        (Activity(100.0, SLOW), 109.5, 1.5, True),
        (Activity(100.0, QUICK), 102.0, 1.98, True),
        (Activity(100.0, UNKNOWN), 190.0, 0.0, False),
    ],
)
def test_a_step_is_late_beyond_what_it_should_take(activity: Activity, now: float, overdue: float, known: bool) -> None:
    late = activity.lateness(now, 0.3)
    assert (late.silent, late.known) == (0.3, known)
    assert late.overdue == pytest.approx(overdue)
    assert late.worst == pytest.approx(max(0.3, overdue))


def plan(tokens: int, rows: int = 1, cached: int = 100) -> Plan:
    ints = np.zeros(tokens, np.int32)
    start, length = np.linspace(0, tokens, rows + 1).astype(np.int32), np.full(rows, cached, np.int32)
    ids, page_table = tuple(map(str, range(rows))), np.zeros((rows, 1), np.int32)
    slots = np.arange(rows, dtype=np.int32)
    samples, sampling = np.ones(rows, np.bool_), np.zeros((rows, 1), np.int32)
    return Plan(0, ids, slots, ints, start, length, page_table, samples, np.zeros(rows, np.int32), sampling)


def test_steps_are_expected_to_take_what_their_like_took() -> None:
    times = StepTimes()
    assert times.expected(plan(1)) is None
    times.took(plan(1), 0.02)
    times.took(plan(300), 8.0)
    assert times.expected(plan(1)) == 0.02
    assert times.expected(plan(400)) == 8.0
    assert times.expected(plan(1, cached=10_000)) is None
    for _ in range(10):
        times.took(plan(1), 0.01)
    assert 0.01 < (times.expected(plan(1)) or 0.0) < 0.02  # one quick step does not shorten it much
    times.took(plan(1), 1.0)
    assert times.expected(plan(1)) == 1.0
