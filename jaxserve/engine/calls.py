"""Calls that a front end makes to an engine; they run between two turns, in the thread that owns scheduler and cache."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec

from jaxserve.adapters.store import AdapterInfo
from jaxserve.adapters.use import AdapterUse
from jaxserve.engine.apart import Apart
from jaxserve.engine.control import EngineControl, SentAdapter, SentMapping, WeightInfo
from jaxserve.engine.core import EngineCore
from jaxserve.engine.kv_events.publisher import KVEventSource
from jaxserve.engine.look import look_at
from jaxserve.engine.observer import EngineObserver
from jaxserve.engine.pause import PauseMode
from jaxserve.errors import ConflictError, InternalError
from jaxserve.metrics.frame import Cursor, EngineLook
from jaxserve.metrics.timeline import TimelineWindow
from jaxserve.routing.demand import Demand
from jaxserve.scheduler.demand import demand_of
from jaxserve.untrusted import check_path

Result = TypeVar("Result")


class EngineCall(msgspec.Struct, Generic[Result], frozen=True, tag=True):
    """A call that is answered by a `Result`, which is one of EngineAnswer."""

    def merged(self, answers: Sequence[Result]) -> Result:
        """The answer of a fleet, of those of its engines, one at least: the first, unless the call says otherwise."""
        return answers[0]

    @property
    def is_for_all(self) -> bool:
        """Whether it failed if any engine of a fleet did not answer."""
        return False


class Flush(EngineCall[None], frozen=True):
    """Forget every cached prefix."""


class AbortRequests(EngineCall[None], frozen=True):
    """End the requests of these names as aborted, whichever front end they came through; unknown names are passed over."""

    names: list[str]


class Trace(EngineCall[TimelineWindow], frozen=True):
    seconds: float

    def merged(self, answers: Sequence[TimelineWindow]) -> TimelineWindow:
        """That of the engine that did most: turns of several engines are no timeline."""
        return max(answers, key=lambda window: len(window.turns))


class Look(EngineCall[EngineLook], frozen=True):
    """What is new of one engine, and which engines there are; see `jaxserve.metrics.frame`."""

    cursor: Cursor = Cursor()

    def merged(self, answers: Sequence[EngineLook]) -> EngineLook:
        """All engines, and the one that the cursor is of."""
        return EngineLook.merged(answers)


class KVEventSources(EngineCall[list[KVEventSource]], frozen=True):
    """Where KV events are published."""

    def merged(self, answers: Sequence[list[KVEventSource]]) -> list[KVEventSource]:
        """Those of all engines."""
        return [source for sources in answers for source in sources]


class AskDemand(EngineCall[Demand], frozen=True):
    """What its requests still ask of it."""


class _Control(EngineCall[WeightInfo], frozen=True):
    """What all engines of a fleet must have done, or none of them."""

    @property
    def is_for_all(self) -> bool:
        return True

    def merged(self, answers: Sequence[WeightInfo]) -> WeightInfo:
        """Of engines that agree. Raises ConflictError for those that serve other weights, or are not all paused or asleep."""
        states = sorted({(one.version, one.is_paused, one.asleep) for one in answers}, key=str)
        if len(states) > 1:
            listed = "; ".join(
                f"version {version}{', paused' * paused}{', asleep' * (asleep is not None)}" for version, paused, asleep in states
            )
            raise ConflictError(f"the engines of the fleet differ, ask all of them again: {listed}")
        return answers[0]


class Info(_Control, frozen=True):
    """Tell which weights are served, and whether requests run."""


class PauseEngine(_Control, frozen=True):
    """Answered when it is paused; see `EngineControl.pause`."""

    mode: PauseMode = "abort"
    clear_cache: bool = True


class Resume(_Control, frozen=True):
    pass


class AbortAll(_Control, frozen=True):
    """End every request as aborted."""


class UpdateFromDisk(_Control, frozen=True):
    """Answered when the weights of a checkpoint are served, that the engine's machine has at this path."""

    path: str
    version: int | str | None = None
    mode: PauseMode = "abort"
    force: bool = False


class OpenTransfer(_Control, frozen=True):
    """Take weights that another process sends."""


class CloseTransfer(_Control, frozen=True):
    """Take no more of them, and drop what has come."""


class StartUpdate(_Control, frozen=True):
    """Announce all arrays of an update that another process sends; see `WeightTransfer.start`."""

    update_id: str
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    mapping: SentMapping = "auto"
    partial: bool = False
    draft: bool = False
    adapter: SentAdapter | None = None


class PutPiece(_Control, frozen=True):
    """Some of its arrays, or of their parts; see `weights.live.pieces`."""

    update_id: str
    content: bytes

    def __repr__(self) -> str:
        return f"PutPiece({self.update_id!r}, {len(self.content)} bytes)"


class FinishUpdate(_Control, frozen=True):
    """Answered when what was sent is served."""

    update_id: str | None = None
    version: int | str | None = None
    mode: PauseMode = "abort"
    force: bool = False


class NameWeights(_Control, frozen=True):
    """Say what version the weights are that are there."""

    version: int | str


class ResetWeights(_Control, frozen=True):
    """Put zeros in their place."""


class WeightSums(EngineCall[list[dict[str, str]]], frozen=True):
    """Checksums of the weights as devices hold them; see `WeightChecks.checksums`. Of each engine one after the other."""

    def merged(self, answers: Sequence[list[dict[str, str]]]) -> list[dict[str, str]]:
        return [sums for engine in answers for sums in engine]

    @property
    def is_for_all(self) -> bool:
        return True


class WorldSize(EngineCall[list[int]], frozen=True):
    """Devices that have weights, of each engine one after the other."""

    def merged(self, answers: Sequence[list[int]]) -> list[int]:
        return [size for engine in answers for size in engine]

    @property
    def is_for_all(self) -> bool:
        return True


class SleepEngine(_Control, frozen=True):
    level: int = 1


class WakeUp(_Control, frozen=True):
    tags: tuple[str, ...] | None = None


class ListAdapters(EngineCall[list[AdapterInfo]], frozen=True):
    """The adapters that requests may name."""


class AskAdapterUse(EngineCall[AdapterUse], frozen=True):
    """Which adapters its requests use now, and what adapters take."""

    def merged(self, answers: Sequence[AdapterUse]) -> AdapterUse:
        return AdapterUse.merged(answers)


class FindAdapter(EngineCall[AdapterInfo], frozen=True):
    """The adapter that a tenant means by a name."""

    name: str
    tenant: str


class LoadAdapter(EngineCall[AdapterInfo], frozen=True):
    """Read an adapter, which the engine's machine has at this path; see `AdapterStore.load`."""

    name: str
    path: str
    tenant: str | None = None
    in_place: bool = False
    pin: bool = False

    @property
    def is_for_all(self) -> bool:
        return True


class UnloadAdapter(EngineCall[AdapterInfo], frozen=True):
    """Let no request name an adapter any more."""

    name: str

    @property
    def is_for_all(self) -> bool:
        return True


TransferCall = OpenTransfer | CloseTransfer | StartUpdate | PutPiece | FinishUpdate
CheckCall = ResetWeights | WeightSums | WorldSize
ControlCall = (
    Info | PauseEngine | Resume | AbortAll | UpdateFromDisk | NameWeights | SleepEngine | WakeUp | TransferCall | CheckCall
)
AdapterCall = ListAdapters | AskAdapterUse | FindAdapter | LoadAdapter | UnloadAdapter
AnyCall = Flush | AbortRequests | Trace | Look | KVEventSources | AskDemand | ControlCall | AdapterCall
Listed = list[KVEventSource] | list[dict[str, str]] | list[int] | list[AdapterInfo]
EngineAnswer = TimelineWindow | EngineLook | Listed | Demand | WeightInfo | AdapterInfo | AdapterUse | None
ControlAnswer = WeightInfo | list[int] | Future[WeightInfo] | Apart[Any, Any]


def answer_type(call: EngineCall[Any]) -> Any:
    """What a call is answered by: one of EngineAnswer."""
    for kind in type(call).__mro__:
        for base in getattr(kind, "__orig_bases__", ()):  # types.get_original_bases is Python 3.12's
            if get_origin(base) is EngineCall:
                return get_args(base)[0]
    raise TypeError(f"{type(call).__name__} does not say what it is answered by")


def run_call(core: EngineCore, call: object) -> EngineAnswer | ControlAnswer | Apart[AdapterInfo, AdapterInfo]:
    """Run one call; what takes several turns is told by a future.

    Raises InternalError for what is none that engines know, else what the call raises.
    """
    if isinstance(call, ControlCall):
        if core.control is None:
            raise InternalError("nobody controls this engine")
        return _control(core.control, call)
    if isinstance(call, AdapterCall):
        return _adapters(core, call)
    match call:
        case Flush():
            core.scheduler.cache.flush()
            return None
        case AbortRequests(names):
            core.cut_off(frozenset(names))
            return None
        case Trace(seconds):
            return _observer(core).window(seconds, core.scheduler.clock.now())
        case Look(cursor):
            return look_at(core, _observer(core), cursor)
        case KVEventSources():
            return [] if core.publisher is None else [core.publisher.source]
        case AskDemand():
            return demand_of(core.scheduler)
    raise InternalError(f"the engine has no call {type(call).__name__!r}")


def _adapters(core: EngineCore, call: AdapterCall) -> EngineAnswer | Apart[AdapterInfo, AdapterInfo]:
    if isinstance(call, ListAdapters) and core.adapters is None:
        return []
    adapters = core.require_adapters()
    store = adapters.store
    match call:
        case ListAdapters():
            return store.listed()
        case AskAdapterUse():
            return adapters.use(core.scheduler.sequences.values())
        case FindAdapter(name, tenant):
            return store.find(name, tenant)
        case LoadAdapter(name, path, tenant, in_place, pin):
            return Apart(partial(store.load, name, path, tenant=tenant, in_place=in_place, pin=pin), None)
        case UnloadAdapter(name):
            info = store.unload(name)
            core.require_adapters().let_go(core.scheduler.sequences.values())
            return info


def _observer(core: EngineCore) -> EngineObserver:
    if core.observer is None:
        raise InternalError("nobody watches this engine")
    return core.observer


def _control(control: EngineControl, call: ControlCall) -> ControlAnswer:
    if isinstance(call, TransferCall):
        return _transfer(control, call)
    if isinstance(call, CheckCall):
        return _check(control, call)
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
            check_path(path, "path")
            return control.update_from_disk(Path(path), version, mode=mode, force=force)
        case NameWeights(version):
            return control.name_weights(version)
        case SleepEngine(level):
            return control.sleep(level)
        case WakeUp(tags):
            return control.wake_up(tags)


def _transfer(control: EngineControl, call: TransferCall) -> ControlAnswer:
    transfer = control.transfer
    match call:
        case OpenTransfer():
            transfer.open()
        case CloseTransfer():
            transfer.close()
        case StartUpdate(update_id, names, dtypes, shapes, mapping, partial, draft, adapter):
            transfer.start(update_id, names, dtypes, shapes, mapping=mapping, partial=partial, draft=draft, adapter=adapter)
        case PutPiece(update_id, content):
            return control.put_piece(update_id, content)
        case FinishUpdate(update_id, version, mode, force):
            return control.finish_update(update_id, version, mode=mode, force=force)
    return control.info()


def _check(control: EngineControl, call: CheckCall) -> ControlAnswer:
    checks = control.checks
    match call:
        case ResetWeights():
            return control.reset_weights()
        case WeightSums():
            make = checks.checksums()
            return Apart(lambda: [make()], None)
        case WorldSize():
            return [checks.num_devices]
