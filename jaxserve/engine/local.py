"""LocalEngine: the EngineClient whose engine runs in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial
from typing import TypeVar, cast

from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.activity import Lateness
from jaxserve.engine.build import BuiltEngine, EngineReport, build_engine
from jaxserve.engine.calls import EngineCall, run_call
from jaxserve.engine.death import EngineDeath
from jaxserve.engine.frontend import Frontend
from jaxserve.engine.link import EngineLoad, LinkSink, load_of
from jaxserve.engine.loop import EngineLoop, TurnOutcome
from jaxserve.engine.routed_experts import refuse_routed_experts
from jaxserve.engine.watching import watch
from jaxserve.errors import CheckpointError, EngineDeadError, InternalError, JaxserveError
from jaxserve.executor.programs import CompileProgress
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.requests import Objective, RequestRecorder
from jaxserve.scheduler.request import EngineRequest
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.texts import TextTools, ThreadTexts

Result = TypeVar("Result")


class LocalLink:
    """An EngineLink to a thread of this process; see there."""

    def __init__(self, built: BuiltEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._core = built.core
        self._loop = loop
        self._sink: LinkSink | None = None
        self._engine = EngineLoop(built.core, self._produced, self._died)

    def start(self) -> None:
        self._engine.start()

    @property
    def heartbeat(self) -> float:
        return self._engine.heartbeat

    def lateness(self, now: float) -> Lateness:
        return self._core.activity.lateness(now)

    @property
    def death(self) -> EngineDeath | None:
        return self._core.death

    def connect(self, sink: LinkSink) -> None:
        self._sink = sink

    def add(self, requests: Sequence[EngineRequest]) -> None:
        self._engine.add(requests)

    def abort(self, ids: Sequence[str]) -> None:
        self._engine.abort(ids)

    def demote(self, ids: Sequence[str], *, demoted: bool) -> None:
        self._engine.demote(ids, demoted=demoted)

    async def call(self, call: EngineCall[Result]) -> Result:
        try:
            return cast(Result, await asyncio.wrap_future(self._engine.call(partial(run_call, call=call))))
        except JaxserveError:
            raise
        except Exception as error:
            raise InternalError(f"the call {call!r} failed: {error!r}") from error

    def load(self) -> EngineLoad:
        return load_of(self._core)

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.stop)

    def _produced(self, outcomes: list[TurnOutcome]) -> None:
        assert self._sink is not None, "requests come from the sink"
        self._loop.call_soon_threadsafe(self._sink.deliver, outcomes)

    def _died(self, error: BaseException) -> None:
        assert self._sink is not None, "an engine without requests does not die"
        self._loop.call_soon_threadsafe(self._sink.lost, EngineDeadError(f"the engine died: {error!r}"))


class LocalEngine(Frontend):
    """Belongs to the event loop it was started in; see EngineClient for what the methods promise.

    Args:
        instruments: metrics of engine and requests go there; by default nobody reads them.
    """

    def __init__(
        self,
        built: BuiltEngine,
        tokenizer: Tokenizer,
        loop: asyncio.AbstractEventLoop,
        instruments: Instruments | None = None,
    ) -> None:
        self._built = built
        instruments = instruments or Instruments()
        watch(built.core, built.report.model.name, instruments)
        recorder = RequestRecorder(instruments, built.report.model.name, Objective())
        self._thread = LocalLink(built, loop)
        texts = ThreadTexts(TextTools(tokenizer, built.chat_template, built.responses))
        super().__init__(self._thread, texts, built.report.model, built.intake, recorder=recorder)

    @classmethod
    async def start(cls, config: EngineConfig, progress: CompileProgress, instruments: Instruments | None = None) -> LocalEngine:
        """Build the engine (off the event loop) and start it. Raises what build_engine raises."""
        refuse_routed_experts(config)
        stopped = threading.Event()

        def report(what: str, done: int, total: int) -> None:
            if stopped.is_set():
                raise InternalError("the start was cancelled")
            progress(what, done, total)

        try:
            built = await asyncio.to_thread(build_engine, config, strict_length=True, clock=RealClock(), progress=report)
        except asyncio.CancelledError:
            stopped.set()  # the thread ends at its next report
            raise
        if built.tokenizer is None:
            raise CheckpointError("a server needs a tokenizer: the checkpoint has none, give one with --tokenizer")
        engine = cls(built, built.tokenizer, asyncio.get_running_loop(), instruments)
        engine.run()
        return engine

    def run(self) -> None:
        self._thread.start()

    @property
    def report(self) -> EngineReport:
        return self._built.report
