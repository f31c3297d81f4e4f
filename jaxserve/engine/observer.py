"""Watches an engine: its timeline and its metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable

from jaxserve.metrics.steps import StepRecorder
from jaxserve.metrics.timeline import Timeline, TimelineWindow
from jaxserve.metrics.turn import Arrival, ExecutorCounts, SequenceUpdate, Turn


class EngineObserver:
    """Listens to an EngineCore, in the engine's thread, and is quick. Times are of the engine's clock, seconds.

    Attributes:
        model: the served model's name.
    """

    def __init__(self, timeline: Timeline, recorder: StepRecorder, model: str) -> None:
        self.timeline = timeline
        self.model = model
        self._recorder = recorder

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """The engine took in the sequences of one request."""
        self.timeline.arrived(arrivals)

    def updated(self, updates: Iterable[SequenceUpdate], now: float) -> None:
        """Sequences got tokens, or ended."""
        self.timeline.updated(updates, now)

    def aborted(self, ids: Iterable[str], now: float) -> None:
        """Sequences were ended from outside."""
        self.timeline.aborted(ids, now)

    def turned(self, turn: Turn) -> None:
        self.timeline.turned(turn)
        self._recorder.turned(turn)

    @property
    def counted(self) -> ExecutorCounts:
        """What the executor counted, a quarter of a second ago at most where steps run."""
        return self._recorder.counted

    def window(self, seconds: float, now: float) -> TimelineWindow:
        """The last seconds; `now` is the engine's clock."""
        return self.timeline.window(seconds, now, time.time())
