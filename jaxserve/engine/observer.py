"""Watches an engine: its timeline and its metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable

from jaxserve.engine.core import EngineCore
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.process import ProcessRecorder
from jaxserve.metrics.steps import StepRecorder
from jaxserve.metrics.timeline import Timeline, TimelineWindow
from jaxserve.metrics.turn import Arrival, SequenceUpdate, Turn

TIMELINE_SECONDS = 60.0


class EngineObserver:
    """Listens to an EngineCore, in the engine's thread, and is quick. Times are of the engine's clock, seconds.

    Args:
        timeline: keeps the last turns.
        recorder: records metrics of steps.
    """

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
        """A turn is over."""
        self._timeline.turned(turn)
        self._recorder.turned(turn)

    def window(self, seconds: float, now: float) -> TimelineWindow:
        """The last seconds; `now` is the engine's clock."""
        return self._timeline.window(seconds, now, time.time())


def watch(
    core: EngineCore,
    model: str,
    instruments: Instruments,
    *,
    process: ProcessRecorder | None = None,
    timeline_seconds: float = TIMELINE_SECONDS,
) -> None:
    """Let an engine that has not started yet be watched.

    Args:
        core: the engine.
        model: the served model's name.
        instruments: its metrics go there.
        process: of the engine's own process; None if it shares one with a front end.
        timeline_seconds: how long its turns are kept.
    """
    timeline = Timeline(timeline_seconds, core.scheduler.cache.num_usable)
    core.observer = EngineObserver(timeline, StepRecorder(instruments, model, core.executor.counts, process))
