"""Calls that a front end makes to an engine by name; they run between two turns, in the thread that owns scheduler and cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from jaxserve.engine.core import EngineCore
from jaxserve.errors import InternalError

EngineCall = Callable[[EngineCore, bytes], bytes]

FLUSH = "flush"
TRACE = "trace"  # argument: seconds as text; reply: a TimelineWindow in msgpack


def _flush(core: EngineCore, argument: bytes) -> bytes:
    core.scheduler.cache.flush()
    return b""


def _trace(core: EngineCore, argument: bytes) -> bytes:
    if core.observer is None:
        raise InternalError("nobody watches this engine")
    return msgspec.msgpack.encode(core.observer.window(float(argument), core.scheduler.clock.now()))


ENGINE_CALLS: Mapping[str, EngineCall] = MappingProxyType({FLUSH: _flush, TRACE: _trace})


def run_call(core: EngineCore, name: str, argument: bytes) -> bytes:
    """Run one call. Raises InternalError for an unknown name, else what the call raises."""
    if name not in ENGINE_CALLS:
        raise InternalError(f"the engine has no call {name!r}")
    return ENGINE_CALLS[name](core, argument)
