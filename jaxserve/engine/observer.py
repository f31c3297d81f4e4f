"""Watches an engine: its timeline and its metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable

from jaxserve.metrics.steps import StepRecorder
from jaxserve.metrics.timeline import Timeline, TimelineWindow
from jaxserve.metrics.turn import Arrival, SequenceUpdate, Turn


class EngineObserver:
    """Listens to an EngineCore, in the engine's thread, and is quick. Times are of the engine's clock, seconds."""

    def __init__(self, timeline: Timeline, recorder: StepRecorder) -> None:
        self._timeline = timeline
        self._recorder = recorder

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """The engine took in the sequences of one request."""
        self._timeline.arrived(arrivals)

    def updated(self, updates: Iterable[SequenceUpdate], now: float) -> None:
        """Sequences got tokens, or ended."""
        self._timeline.updated(updates, now)

    def aborted(self, ids: Iterable[str], now: float) -> None:
        """Sequences were ended from outside."""
        self._timeline.aborted(ids, now)

    def turned(self, turn: Turn) -> None:
        self._timeline.turned(turn)
        self._recorder.turned(turn)

    def window(self, seconds: float, now: float) -> TimelineWindow:
        """The last seconds; `now` is the engine's clock."""
        return self._timeline.window(seconds, now, time.time())
