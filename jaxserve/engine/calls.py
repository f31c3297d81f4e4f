"""Calls that a front end makes to an engine; they run between two turns, in the thread that owns scheduler and cache."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import get_original_bases
from typing import Any, Generic, TypeVar, get_args

import msgspec

from jaxserve.engine.apart import Apart
from jaxserve.engine.control import EngineControl, WeightInfo
from jaxserve.engine.core import EngineCore
from jaxserve.engine.kv_events.publisher import KVEventSource
from jaxserve.engine.pause import PauseMode
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


class Info(EngineCall[WeightInfo], frozen=True):
    """Tell which weights are served, and whether requests run."""


class PauseEngine(EngineCall[WeightInfo], frozen=True):
    """Answered when it is paused; see `EngineControl.pause`."""

    mode: PauseMode = "abort"
    clear_cache: bool = True


class Resume(EngineCall[WeightInfo], frozen=True):
    pass


class AbortAll(EngineCall[WeightInfo], frozen=True):
    """End every request as aborted."""


class UpdateFromDisk(EngineCall[WeightInfo], frozen=True):
    """Answered when the weights of a checkpoint are served, that the engine's machine has at this path."""

    path: str
    version: int | str | None = None
    mode: PauseMode = "abort"
    force: bool = False


class NameWeights(EngineCall[WeightInfo], frozen=True):
    """Say what version the weights are that are there."""

    version: int | str


class SleepEngine(EngineCall[WeightInfo], frozen=True):
    level: int = 1


class WakeUp(EngineCall[WeightInfo], frozen=True):
    tags: tuple[str, ...] | None = None


ControlCall = Info | PauseEngine | Resume | AbortAll | UpdateFromDisk | NameWeights | SleepEngine | WakeUp
AnyCall = Flush | Trace | KVEventSources | AskDemand | ControlCall
EngineAnswer = TimelineWindow | list[KVEventSource] | Demand | WeightInfo | None


def answer_type(call: EngineCall[Any]) -> Any:
    """What a call is answered by: one of EngineAnswer."""
    (base,) = get_original_bases(type(call))
    return get_args(base)[0]


def run_call(core: EngineCore, call: object) -> EngineAnswer | Future[WeightInfo] | Apart[Any, Future[WeightInfo]]:
    """Run one call; what takes several turns is told by a future.

    Raises InternalError for what is none that engines know, else what the call raises.
    """
    if isinstance(call, ControlCall):
        if core.control is None:
            raise InternalError("nobody controls this engine")
        return _control(core.control, call)
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


def _control(control: EngineControl, call: ControlCall) -> WeightInfo | Future[WeightInfo] | Apart[Any, Future[WeightInfo]]:
    match call:
        case Info():
            return control.info()
        case PauseEngine(mode, clear_cache):
            return control.pause(mode, clear_cache=clear_cache)
        case Resume():
            return control.resume()
        case AbortAll():
            return control.abort_all()
        case UpdateFromDisk(path, version, mode, force):
            return control.update_from_disk(Path(path), version, mode=mode, force=force)
        case NameWeights(version):
            return control.name_weights(version)
        case SleepEngine(level):
            return control.sleep(level)
        case WakeUp(tags):
            return control.wake_up(tags)
