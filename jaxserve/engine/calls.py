"""Calls that a front end makes to an engine; they run between two turns, in the thread that owns scheduler and cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from jaxserve.engine.core import EngineCore
from jaxserve.engine.kv_events.publisher import KVEventSource
from jaxserve.errors import InternalError
from jaxserve.metrics.timeline import TimelineWindow
from jaxserve.routing.demand import Demand
from jaxserve.scheduler.demand import demand_of

Result = TypeVar("Result")


class EngineCall(msgspec.Struct, Generic[Result], frozen=True, tag=True):
    """A call that is answered by a `Result`, which is one of EngineAnswer."""

    def merged(self, answers: Sequence[Result]) -> Result:
        """The answer of a fleet, of those of its engines, one at least: the first, unless the call says otherwise."""
        return answers[0]


class Flush(EngineCall[None], frozen=True):
    """Forget every cached prefix."""


class Trace(EngineCall[TimelineWindow], frozen=True):
    seconds: float

    def merged(self, answers: Sequence[TimelineWindow]) -> TimelineWindow:
        """That of the engine that did most: turns of several engines are no timeline."""
        return max(answers, key=lambda window: len(window.turns))


class KVEventSources(EngineCall[list[KVEventSource]], frozen=True):
    """Where KV events are published."""

    def merged(self, answers: Sequence[list[KVEventSource]]) -> list[KVEventSource]:
        """Those of all engines."""
        return [source for sources in answers for source in sources]


class AskDemand(EngineCall[Demand], frozen=True):
    """What its requests still ask of it."""


AnyCall = Flush | Trace | KVEventSources | AskDemand
EngineAnswer = TimelineWindow | list[KVEventSource] | Demand | None


def run_call(core: EngineCore, call: object) -> EngineAnswer:
    """Run one call. Raises InternalError for what is none that engines know, else what the call raises."""
    match call:
        case Flush():
            core.scheduler.cache.flush()
            return None
        case Trace(seconds):
            if core.observer is None:
                raise InternalError("nobody watches this engine")
            return core.observer.window(seconds, core.scheduler.clock.now())
        case KVEventSources():
            return [] if core.publisher is None else [core.publisher.source]
        case AskDemand():
            return demand_of(core.scheduler)
    raise InternalError(f"the engine has no call {type(call).__name__!r}")
