"""A timeline as JSON that https://ui.perfetto.dev and chrome://tracing open.

The format is the Trace Event Format,
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: "X" is a complete event on a track, "b" and "e"
begin and end a nested event of an id, "C" is a counter, "i" an instant, "M" names a track. Times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from jaxserve.metrics.timeline import Span, TimelineWindow
from jaxserve.metrics.turn import Turn

ENGINE, REQUESTS = 1, 2  # processes of the trace
HOST, DEVICE = 1, 2  # tracks of the engine

_NAMES = (
    ("process_name", ENGINE, 0, "engine"),
    ("thread_name", ENGINE, HOST, "host: plan, launch, wait, apply, emit"),
    ("thread_name", ENGINE, DEVICE, "device: steps"),
    ("process_name", REQUESTS, 0, "requests"),
)


def chrome_trace(window: TimelineWindow) -> dict[str, Any]:
    """The trace, whose time 0 is the window's start; events that began before it have negative times."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}} for kind, process, track, name in _NAMES
    ]
    rows = {turn.step: turn for turn in window.turns if turn.step >= 0}
    for turn in window.turns:
        events += _phases(turn, window.start)
        events += _step(turn, rows.get(turn.collected), window.start)
        events += _counters(turn, window)
    for span in window.spans:
        events += _request(span, window)
    for before, turn in pairwise(window.turns):
        if turn.preemptions > before.preemptions:
            arguments = {"sequences": turn.preemptions - before.preemptions}
            events.append(_event("i", "preempted", turn.planned - window.start, s="t", args=arguments))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"unix_start": window.unix - (window.end - window.start), "seconds": window.end - window.start},
    }


def _event(kind: str, name: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {"ph": kind, "name": name, "ts": round(seconds * 1e6, 3), "pid": ENGINE, "tid": HOST, **more}


def _phases(turn: Turn, start: float) -> Iterator[dict[str, Any]]:
    for name, (begin, end) in turn.phases.items():
        if end > begin:
            yield _event("X", name, begin - start, dur=round((end - begin) * 1e6, 3), args=_shape(turn))


def _step(turn: Turn, launched: Turn | None, start: float) -> Iterator[dict[str, Any]]:
    """The step whose result a turn took; `launched` is the turn that launched it, if that is in the window."""
    if turn.collected < 0:
        return
    arguments = _shape(launched) if launched is not None else {"step": turn.collected}
    if launched is not None and launched.drafts:
        arguments["accepted"] = turn.accepted
    seconds = turn.waited - turn.step_began
    name = f"step {turn.collected}"
    yield _event("X", name, turn.step_began - start, dur=round(seconds * 1e6, 3), tid=DEVICE, args=arguments)


def _shape(turn: Turn) -> dict[str, int]:
    drafts = {"drafts": turn.drafts} if turn.drafts else {}
    return {"step": turn.step, "rows": turn.rows, "tokens": turn.tokens, **drafts}


def _counters(turn: Turn, window: TimelineWindow) -> Iterator[dict[str, Any]]:
    at = turn.ended - window.start
    used = window.num_pages - turn.pages_free
    yield _event("C", "KV pages", at, args={"used": used, "free": turn.pages_free})
    yield _event("C", "sequences", at, args={"running": turn.running, "waiting": turn.waiting})
    yield _event("C", "rows", at, args={"rows": turn.rows})


def _request(span: Span, window: TimelineWindow) -> Iterator[dict[str, Any]]:
    """A sequence and its three stages; what has not ended yet ends with the window."""
    end = span.ended if span.ended is not None else window.end
    started = span.started if span.started is not None else end
    first = span.first_token if span.first_token is not None else end
    facts = {
        "service_class": span.service_class,
        "prompt_tokens": span.prompt_tokens,
        "output_tokens": span.tokens,
        "outcome": span.outcome or "active",
    }
    stages = (("queue", span.arrival, started), ("prefill", started, first), ("decode", first, end))
    yield _asynchronous("b", span.id, span.id, span.arrival - window.start, facts)
    for name, begin, finish in stages:
        if finish > begin:
            yield _asynchronous("b", name, span.id, begin - window.start, {})
            yield _asynchronous("e", name, span.id, finish - window.start, {})
    yield _asynchronous("e", span.id, span.id, end - window.start, {})


def _asynchronous(kind: str, name: str, key: str, seconds: float, arguments: dict[str, Any]) -> dict[str, Any]:
    return _event(kind, name, seconds, cat="request", id=key, pid=REQUESTS, args=arguments)
