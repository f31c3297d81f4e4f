import json

import msgspec
import pytest

from jaxserve.errors import DeadlineError
from jaxserve.metrics import timeline as timeline_module
from jaxserve.metrics.chrome_trace import DEVICE, ENGINE, HOST, REQUESTS, chrome_trace
from jaxserve.metrics.timeline import Timeline, TimelineWindow
from jaxserve.metrics.turn import Arrival, Turn
from jaxserve.scheduler.request import Update
from jaxserve.types import FinishReason


def turn(at, *, step=-1, collected=-1, preemptions=0):
    marks = (at, at + 0.001, at + 0.002, at + 0.005, at + 0.006, at + 0.007)
    return Turn(*marks, step, 2, 10, collected, at, running=2, waiting=1, pages_free=70, preemptions=preemptions)


def story():
    """A timeline in which one sequence finishes, one fails, one is aborted, one runs, and one waits."""
    kept = Timeline(60.0, 100)
    for number, name in enumerate(("done", "failed", "gone", "runs", "waits")):
        kept.arrived([Arrival(name, "batch", 5 + number, 10.0)])
    tokens = [Update(name, 1, queue_time=0.5) for name in ("done", "failed", "gone", "runs")]
    kept.updated([*tokens, Update("nobody's", 1)], 11.0)
    kept.turned(turn(10.99, step=0))
    kept.updated([Update("done", 2, finish_reason=FinishReason.LENGTH), Update("failed", error=DeadlineError("late"))], 12.0)
    kept.aborted(["gone", "nobody's"], 12.5)
    kept.turned(turn(12.5, step=1, collected=0, preemptions=2))
    return kept


def test_spans_of_sequences():
    window = story().window(60.0, 13.0, 1e9)
    spans = {span.id: span for span in window.spans}
    assert list(spans) == ["done", "failed", "gone", "runs", "waits"]
    facts = {span.id: (span.tokens, span.started, span.first_token, span.ended, span.outcome) for span in window.spans}
    assert facts == {
        "done": (2, 10.5, 11.0, 12.0, "length"),
        "failed": (1, 10.5, 11.0, 12.0, "deadline_exceeded"),
        "gone": (1, 10.5, 11.0, 12.5, "abort"),
        "runs": (1, 10.5, 11.0, None, ""),
        "waits": (0, None, None, None, ""),
    }


def test_a_window_has_what_touches_it():
    kept = story()
    window = kept.window(0.6, 13.0, 1e9)
    assert (window.start, window.end) == (pytest.approx(12.4), 13.0)
    assert [one.step for one in window.turns] == [1]
    assert [span.id for span in window.spans] == ["gone", "runs", "waits"]
    assert kept.window(1e9, 100.0, 1e9).start == 40.0  # no more than is kept


def test_a_window_stays_as_it_was():
    """Other threads read it while the engine's goes on."""
    kept = story()
    window = kept.window(60.0, 13.0, 1e9)
    before = msgspec.msgpack.encode(window)
    kept.updated([Update("runs", 3, finish_reason=FinishReason.LENGTH), Update("waits", 1, queue_time=0.5)], 14.0)
    kept.aborted(["waits"], 15.0)
    kept.turned(turn(15.0, step=2))
    assert msgspec.msgpack.encode(window) == before


def test_what_is_too_old_is_forgotten_and_what_is_too_much_too(monkeypatch):
    kept = story()
    kept.turned(turn(72.2, step=2))
    window = kept.window(1e9, 72.3, 1e9)
    assert [one.step for one in window.turns] == [1, 2]
    assert [span.id for span in window.spans] == ["gone", "runs", "waits"]
    assert (len(kept._turns), len(kept._ended)) == (2, 1), "memory is given back"
    monkeypatch.setattr(timeline_module, "MAX_TURNS", 3)
    few = Timeline(60.0, 100)
    for number in range(5):
        few.turned(turn(float(number), step=number))
    assert [one.step for one in few.window(60.0, 5.0, 0.0).turns] == [2, 3, 4]


def test_a_window_survives_the_way_between_processes():
    window = story().window(60.0, 13.0, 1e9)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(window), type=TimelineWindow) == window


def check_format(trace):
    """The structure that the Trace Event Format asks for."""
    opened: dict[tuple[object, ...], list[str]] = {}
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        kind = event["ph"]
        if kind == "M":
            assert event["args"]["name"]
            continue
        assert isinstance(event["ts"], float)
        if kind == "X":
            assert event["dur"] >= 0
        elif kind == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
        elif kind in "be":
            stack = opened.setdefault((event["cat"], event["id"]), [])
            if kind == "b":
                stack.append(event["name"])
            else:
                assert stack.pop() == event["name"]
        else:
            assert (kind, event["s"]) == ("i", "t")
    assert not any(opened.values())


def test_the_trace():
    trace = json.loads(json.dumps(chrome_trace(story().window(60.0, 13.0, 1e9))))
    check_format(trace)
    events = trace["traceEvents"]

    def of(kind, process, track=HOST):
        return [one for one in events if (one["ph"], one["pid"], one["tid"]) == (kind, process, track)]

    start = 13.0 - 60.0
    phases = [one for one in of("X", ENGINE) if one["args"]["step"] == 0]
    assert [one["name"] for one in phases] == ["plan", "launch", "wait", "apply", "emit"]
    assert phases[0]["ts"] == pytest.approx((10.99 - start) * 1e6)
    assert phases[2]["dur"] == pytest.approx(3000)
    [step] = of("X", ENGINE, DEVICE)
    assert step["name"] == "step 0"
    assert step["args"] == {"step": 0, "rows": 2, "tokens": 10}
    assert step["ts"] == pytest.approx((12.5 - start) * 1e6)
    assert step["dur"] == pytest.approx(5000)
    counters = {one["name"]: one["args"] for one in of("C", ENGINE)}
    assert counters == {
        "KV pages": {"used": 30, "free": 70},
        "sequences": {"running": 2, "waiting": 1},
        "rows": {"rows": 2},
    }
    [preempted] = of("i", ENGINE)
    assert preempted["args"] == {"sequences": 2}
    stages = {
        name: [(one["name"], (one["ts"] / 1e6 + start)) for one in of("b", REQUESTS) if one["id"] == name]
        for name in ("done", "waits")
    }
    assert stages["done"] == [
        ("done", pytest.approx(10.0)),
        ("queue", pytest.approx(10.0)),
        ("prefill", pytest.approx(10.5)),
        ("decode", pytest.approx(11.0)),
    ]
    assert [name for name, _ in stages["waits"]] == ["waits", "queue"]
    [facts] = [one["args"] for one in of("b", REQUESTS) if one["name"] == "done"]
    assert facts == {"service_class": "batch", "prompt_tokens": 5, "output_tokens": 2, "outcome": "length"}
    assert trace["otherData"]["unix_start"] == pytest.approx(1e9 - 60.0)


def test_a_trace_tells_of_drafts():
    """Where a step had any: how many, in the turn that launched it and in the step, and how many were right, in the step."""
    kept = Timeline(60.0, 100)
    launching, taking = turn(1.0, step=0), turn(2.0, step=1, collected=0)
    launching.drafts, taking.accepted = 6, 4
    kept.turned(launching)
    kept.turned(taking)
    events = chrome_trace(kept.window(60.0, 3.0, 1e9))["traceEvents"]
    arguments = {event["name"]: event["args"] for event in events if event["ph"] == "X"}
    assert arguments["step 0"] == {"step": 0, "rows": 2, "tokens": 10, "drafts": 6, "accepted": 4}
    assert [event["args"].get("drafts") for event in events if event["name"] == "plan"] == [6, None]
