"""LocalEngine: the EngineClient whose engine runs in a thread of this process."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import BuiltEngine, EngineReport, build_engine
from jaxserve.engine.client import EngineStats, ModelInfo
from jaxserve.engine.core import EngineCore
from jaxserve.engine.events import Event
from jaxserve.engine.intake import NO_OPTIONS
from jaxserve.engine.loop import EngineLoop, Outcome, Refusal
from jaxserve.engine.outputs import RequestOutputs
from jaxserve.errors import CheckpointError, DrainingError, EngineDeadError, InternalError, InvalidRequestError, JaxserveError
from jaxserve.executor.programs import Progress
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.types import ChatMessage, Prompt, RequestOptions

logger = logging.getLogger(__name__)

TOKENIZER_THREADS = 2
DRAIN_POLL = 0.02  # seconds


@dataclass(slots=True, eq=False)
class _Stream:
    """One active request: its outputs, and the events its reader has not taken yet."""

    outputs: RequestOutputs
    events: asyncio.Queue[Event | JaxserveError] = field(default_factory=asyncio.Queue)


@dataclass(slots=True)
class _Counters:
    received: int = 0
    active: int = 0
    finished: int = 0
    aborted: int = 0
    rejected: int = 0


class LocalEngine:
    """Belongs to the event loop it was started in; see EngineClient for what the methods promise."""

    def __init__(self, built: BuiltEngine, tokenizer: Tokenizer, loop: asyncio.AbstractEventLoop) -> None:
        self._built = built
        self._tokenizer = tokenizer
        self._loop = loop
        self._engine = EngineLoop(built.core, self._from_engine, self._engine_died)
        self._streams: dict[str, _Stream] = {}  # sequence id -> the stream of its request
        self._requests: dict[str, _Stream] = {}
        self._counters = _Counters()
        self._pool = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="jaxserve-tokenizer")
        self._draining = False
        self._death: BaseException | None = None

    @classmethod
    async def start(cls, config: EngineConfig, progress: Progress) -> LocalEngine:
        """Build the engine (off the event loop) and start it. Raises what build_engine raises."""
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
        engine = cls(built, built.tokenizer, asyncio.get_running_loop())
        engine._engine.start()
        return engine

    @property
    def report(self) -> EngineReport:
        """What was built."""
        return self._built.report

    @property
    def model(self) -> ModelInfo:
        """The served model."""
        return self._built.report.model

    @property
    def tokenizer(self) -> Tokenizer:
        """The served model's tokenizer."""
        return self._tokenizer

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> AsyncIterator[Event]:
        """Run one request; see EngineClient.generate."""
        self._counters.received += 1
        self._counters.active += 1
        name = request_id or uuid.uuid4().hex
        try:
            requests, stream = await self._prepare(prompt, params, name, options or NO_OPTIONS)
        except BaseException as error:
            self._counters.active -= 1
            if not isinstance(error, Exception):  # cancelled while its prompt was tokenized
                self._counters.aborted += 1
                raise
            self._counters.rejected += 1
            if isinstance(error, JaxserveError):
                raise
            logger.exception("a request could not be prepared")
            raise InternalError(f"the request could not be prepared: {error!r}") from error
        self._requests[name] = stream
        self._streams.update((request.id, stream) for request in requests)
        self._engine.add(requests)
        try:
            while not (stream.outputs.done and stream.events.empty()):
                event = await stream.events.get()
                if isinstance(event, JaxserveError):
                    raise event
                yield event
        finally:
            self._close(name, stream)

    async def render_chat(self, messages: Sequence[ChatMessage], template_arguments: Mapping[str, Any]) -> Prompt:
        """Apply the chat template and tokenize; see EngineClient.render_chat."""
        self.check_health()
        template = self._built.chat_template
        if template is None:
            raise InvalidRequestError(
                "the model has no chat template; use /v1/completions or give one with --chat-template", param="messages"
            )
        arguments = dict(template_arguments)
        render = partial(
            template.render,
            messages,
            add_generation_prompt=arguments.pop("add_generation_prompt", True),
            continue_final_message=arguments.pop("continue_final_message", False),
            arguments=arguments,
        )
        return await self._loop.run_in_executor(self._pool, lambda: {"prompt_token_ids": self._encode(render())})

    async def abort(self, request_id: str) -> bool:
        """Abort a request; its stream ends with Finished events."""
        stream = self._requests.get(request_id)
        if stream is None or stream.outputs.done:
            return False
        self._engine.abort(stream.outputs.active_ids)
        for event in stream.outputs.abort():
            stream.events.put_nowait(event)
        return True

    async def reset_prefix_cache(self) -> None:
        """Forget every cached prefix; see EngineClient.reset_prefix_cache."""
        await asyncio.wrap_future(self._engine.call(_flush))

    def stats(self) -> EngineStats:
        """The load now."""
        scheduler, counters = self._built.core.scheduler, self._counters
        return EngineStats(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            pages_total=scheduler.cache.num_usable,
            pages_free=scheduler.cache.num_free,
            received=counters.received,
            active=counters.active,
            finished=counters.finished,
            aborted=counters.aborted,
            rejected=counters.rejected,
            preemptions=scheduler.num_preemptions,
            lost_tokens=scheduler.num_lost_tokens,
            prefix_queried_tokens=scheduler.cache.queried_tokens,
            prefix_hit_tokens=scheduler.cache.hit_tokens,
        )

    def check_health(self) -> None:
        """Raise unless requests are accepted."""
        if self._death is not None:
            raise EngineDeadError(f"the engine died: {self._death!r}")
        if self._draining:
            raise DrainingError("the server is shutting down", retry_after=1.0)

    async def drain(self, timeout: float) -> None:
        """Accept nothing new, let what runs finish, then end the engine."""
        self._draining = True
        deadline = time.monotonic() + timeout
        while self._requests and self._death is None and time.monotonic() < deadline:
            await asyncio.sleep(DRAIN_POLL)
        self._fail_all(DrainingError("the server shut down before the request was done", retry_after=1.0))
        await asyncio.to_thread(self._engine.stop)
        await asyncio.to_thread(self._pool.shutdown)

    async def _prepare(
        self, prompt: Prompt, params: SamplingParams, name: str, options: RequestOptions
    ) -> tuple[list[EngineRequest], _Stream]:
        """Tokenize and validate off the event loop."""
        self.check_health()
        arrival = self._built.clock.now()

        def prepare() -> tuple[list[EngineRequest], RequestOutputs]:
            requests = self._built.intake.prepare(prompt, params, name, arrival, options)
            return requests, RequestOutputs(name, requests, self.tokenizer, self._built.clock)

        requests, outputs = await self._loop.run_in_executor(self._pool, prepare)
        self.check_health()
        if name in self._requests:  # looked at after the wait: nothing can come between this and the caller's entry
            raise InvalidRequestError(f"request_id {name!r} is active already", param="request_id")
        return requests, _Stream(outputs)

    def _encode(self, text: str) -> list[int]:
        """Tokens of a rendered conversation: the template wrote the special tokens itself."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _close(self, name: str, stream: _Stream) -> None:
        """The one place a request ends: whatever of it is still active is aborted."""
        outputs = stream.outputs
        active = outputs.active_ids
        if active:
            self._engine.abort(active)
        for sequence in outputs.ids:
            del self._streams[sequence]
        del self._requests[name]
        self._counters.active -= 1
        if outputs.error is not None and not outputs.started:
            self._counters.rejected += 1
        elif outputs.error is not None or active or outputs.was_aborted:
            self._counters.aborted += 1
        else:
            self._counters.finished += 1

    def _from_engine(self, outcomes: list[Outcome]) -> None:
        """In the engine thread: hand a turn's outcomes to the event loop in one call."""
        self._loop.call_soon_threadsafe(self._deliver, outcomes)

    def _deliver(self, outcomes: list[Outcome]) -> None:
        ended: list[str] = []
        for outcome in outcomes:
            stream = self._streams.get(outcome.ids[0] if isinstance(outcome, Refusal) else outcome.id)
            if stream is None or stream.outputs.done:  # its reader went away, or it failed
                continue
            if isinstance(outcome, Refusal):
                stream.outputs.fail(outcome.error)  # the engine has nothing of it to end
                stream.events.put_nowait(outcome.error)
                continue
            pushed = stream.outputs.push(outcome)
            ended += pushed.end
            for event in pushed.events:
                stream.events.put_nowait(event)
            if pushed.error is not None:
                stream.events.put_nowait(pushed.error)
        if ended:
            self._engine.abort(ended)

    def _engine_died(self, error: BaseException) -> None:
        """In the engine thread: every stream ends with an error."""
        self._death = error
        dead = EngineDeadError(f"the engine died: {error!r}")
        self._loop.call_soon_threadsafe(self._fail_all, dead)

    def _fail_all(self, error: JaxserveError) -> None:
        for stream in self._requests.values():
            if not stream.outputs.done:
                stream.outputs.fail(error)  # the engine runs none of it any more, or is about to stop
                stream.events.put_nowait(error)


def _flush(core: EngineCore) -> None:
    core.scheduler.cache.flush()
