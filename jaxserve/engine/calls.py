"""Calls that a front end makes to an engine; they run between two turns, in the thread that owns scheduler and cache."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from jaxserve.engine.core import EngineCore
from jaxserve.errors import InternalError
from jaxserve.metrics.timeline import TimelineWindow

Result = TypeVar("Result")


class EngineCall(msgspec.Struct, Generic[Result], frozen=True, tag=True):
    """A call that is answered by a `Result`, which is one of EngineAnswer."""


class Flush(EngineCall[None], frozen=True):
    """Forget every cached prefix."""


class Trace(EngineCall[TimelineWindow], frozen=True):
    seconds: float


AnyCall = Flush | Trace
EngineAnswer = TimelineWindow | None


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
    raise InternalError(f"the engine has no call {type(call).__name__!r}")
