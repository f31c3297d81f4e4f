"""Lets an engine be watched."""

from __future__ import annotations

from jaxserve.engine.core import EngineCore
from jaxserve.engine.observer import EngineObserver
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.process import ProcessRecorder
from jaxserve.metrics.steps import StepRecorder
from jaxserve.metrics.timeline import Timeline

TIMELINE_SECONDS = 60.0


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
    method = core.scheduler.counts().method
    recorder = StepRecorder(instruments, model, core.executor.counts, process, method=method)
    core.observer = EngineObserver(timeline, recorder, model)
