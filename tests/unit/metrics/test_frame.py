"""What is new since somebody looked."""

import math

import msgspec
import pytest

from jaxserve.metrics import timeline as timeline_module
from jaxserve.metrics.frame import EngineLook, EngineSummary, TurnRow
from jaxserve.metrics.timeline import Timeline
from jaxserve.metrics.turn import Arrival, Turn
from jaxserve.scheduler.request import Update
from jaxserve.types import FinishReason


def kept(turns):
    timeline = Timeline(60.0, 100)
    for number in range(turns):
        timeline.turned(Turn(float(number), ended=number + 0.5, step=number))
    return timeline


@pytest.mark.parametrize(
    ("first", "most", "steps"), [(0, 10, [0, 1, 2, 3]), (2, 10, [2, 3]), (0, 3, [1, 2, 3]), (4, 9, []), (9, 9, [])]
)
def test_turns_since(first, most, steps):
    assert [one.step for one in kept(4).turns_since(first, most)] == steps


def test_turns_that_are_no_longer_kept_show_by_their_numbers():
    timeline = Timeline(1.5, 100)
    for number in range(4):
        timeline.turned(Turn(float(number), ended=float(number), step=number))
    turns = timeline.turns_since(0, 10)
    assert [one.step for one in turns] == [2, 3]
    assert timeline.num_turns - len(turns) == 2


def test_spans_that_changed_come_once_and_stay_as_they_are():
    timeline = Timeline(60.0, 100)
    timeline.arrived([Arrival(name, "batch", 5, 1.0, "t") for name in "abc"])
    seen = timeline.num_changes
    timeline.updated([Update("b", 7, queue_time=0.5)], 2.0)
    timeline.updated([Update("b", 8, finish_reason=FinishReason.STOP), Update("c", 9)], 3.0)
    timeline.updated([Update("c", 9)], 4.0)
    first, other = timeline.spans_since(seen, 10)
    assert (first.id, first.tenant, first.first_token, first.ended, first.outcome, first.tokens) == (
        "b",
        "t",
        2.0,
        3.0,
        "stop",
        2,
    )
    assert (other.id, other.first_token, other.ended) == ("c", 3.0, None)
    timeline.aborted(["c"], 5.0)
    assert other.ended is None, "other threads read it"
    assert [one.id for one in timeline.spans_since(0, 10)] == ["a", "b", "c"]
    assert [one.id for one in timeline.spans_since(0, 2)] == ["b", "c"]
    assert timeline.spans_since(timeline.num_changes, 10) == []


def test_changes_are_kept_to_a_limit(monkeypatch):
    monkeypatch.setattr(timeline_module, "MAX_CHANGES", 2)
    timeline = Timeline(60.0, 100)
    timeline.arrived([Arrival(name, "batch", 5, 1.0) for name in "abc"])
    assert [one.id for one in timeline.spans_since(0, 10)] == ["b", "c"]


def test_a_turn_in_few_bytes():
    marks = (10.0, 10.001, 10.002, 10.005, 10.006, 10.007)
    row = TurnRow.of(Turn(*marks, step=4, rows=2, tokens=9, collected=3, step_began=9.99, prefill_tokens=8))
    assert (row.began, row.planned, row.launched, row.waited, row.applied, row.ended) == (10.0, 1000, 2000, 5000, 6000, 7000)
    assert (row.step, row.rows, row.tokens, row.prefill_tokens, row.collected, row.step_began) == (4, 2, 9, 8, 3, -10_000)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=TurnRow) == row
    assert len(msgspec.json.encode(row)) < 100


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_times_that_are_none(value):
    row = TurnRow.of(Turn(value, planned=1.0, ended=value))
    assert row.planned == row.ended == 0
    assert msgspec.json.encode(row).startswith(b"[null,"), "JSON has no word for them"


def test_looks_at_several_engines_are_one():
    looks = [EngineLook([EngineSummary(name, "m", 1, 0)]) for name in ("x", "y")]
    merged = EngineLook.merged(looks)
    assert [one.life for one in merged.engines] == ["x", "y"]
    assert merged.frame is None
