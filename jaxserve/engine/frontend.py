"""Frontend: the EngineClient, over an engine that is wherever its link leads."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from jaxserve.chat_parsing.template import ResponseTemplate
from jaxserve.clock import RealClock
from jaxserve.engine.activity import Lateness
from jaxserve.engine.bounds import RequestBounds
from jaxserve.engine.calls import EngineCall, Flush
from jaxserve.engine.client import EngineStats, ModelInfo, RequestParams
from jaxserve.engine.death import EngineDeath
from jaxserve.engine.events import Delta, Event, Started
from jaxserve.engine.expected import ExpectedRequests
from jaxserve.engine.intake import NO_OPTIONS, Intake
from jaxserve.engine.link import EngineDescription, EngineLink
from jaxserve.engine.loop import Refusal, TurnOutcome
from jaxserve.engine.outputs import NO_TOKENS, RequestOutputs
from jaxserve.engine.overdue import Promise
from jaxserve.engine.pooled import PooledOutputs
from jaxserve.engine.streams import EventBuffer, StreamLimits
from jaxserve.errors import (
    DrainingError,
    ErrorCode,
    InvalidRequestError,
    JaxserveError,
    QueueFullError,
    SlowReaderError,
    contained,
)
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.requests import Objective, RequestRecord, RequestRecorder
from jaxserve.pooling.params import PoolingParams
from jaxserve.scheduler.request import EngineRequest, Update
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.responses import markup_tokens
from jaxserve.tokenizer.texts import Texts
from jaxserve.types import ChatMessage, Prompt, RequestOptions, ServiceClass

if TYPE_CHECKING:
    from jaxserve.engine.replicas.resuming import ResumingLink

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

DRAIN_POLL = 0.02  # seconds
WATCH_SECONDS = 0.5  # between looks at streams that stand still
CLIENT_GONE, ABORTED = "client_gone", "abort"  # why requests were aborted, besides codes of errors


@dataclass(slots=True, eq=False)
class _Stream:
    outputs: RequestOutputs | PooledOutputs
    record: RequestRecord
    events: EventBuffer
    promise: Promise
    tenant: str
    demoted: bool = False


@dataclass(slots=True)
class _Counters:
    received: int = 0
    active: int = 0
    finished: int = 0
    aborted: int = 0
    rejected: int = 0


class Frontend:
    """Prepares requests, turns the engine's tokens into text, and keeps the streams. See EngineClient for the methods' promises.

    Belongs to the event loop that it is used in. It is the sink of its link.

    Args:
        link: leads to the engine; connected here.
        intake: by the engine's rules.
        origin: tells its requests from those of the engine's other front ends.
        recorder: of its requests; by default one that nobody reads.
        limits: what readers may leave unread.
    """

    def __init__(
        self,
        link: EngineLink | ResumingLink,
        texts: Texts,
        model: ModelInfo,
        intake: Intake,
        *,
        origin: str = "",
        recorder: RequestRecorder | None = None,
        limits: StreamLimits | None = None,
    ) -> None:
        self._link = link
        self._texts = texts
        self._model = model
        self._intake = intake
        self._origin = origin
        self._clock = RealClock()
        self._expected = ExpectedRequests()
        self._streams: dict[str, _Stream] = {}  # sequence id -> the stream of its request
        self._requests: dict[str, _Stream] = {}
        self._counters = _Counters()
        self._recorder = recorder or RequestRecorder(Instruments(), model.name, Objective())
        self._limits = limits or StreamLimits()
        self._markup = markup_tokens(texts.tools)
        self._watch: asyncio.TimerHandle | None = None
        self._engines = 0  # found after the first
        self._draining = False
        self._failure: JaxserveError | None = None
        link.connect(self)

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def tokenizer(self) -> Tokenizer:
        return self._texts.tools.tokenizer

    @property
    def chat_template(self) -> str | None:
        template = self._texts.tools.template
        return None if template is None else template.source

    @property
    def response_template(self) -> ResponseTemplate | None:
        return self._texts.tools.responses

    @property
    def bounds(self) -> RequestBounds:
        return self._intake.bounds

    def check_room(self, tenant: str, sequences: int) -> None:
        most = self.bounds.sequences
        if len(self._streams) + self._expected.sequences + sequences <= most:
            return
        active = sum(stream.outputs.num_active for stream in self._requests.values() if stream.tenant == tenant)
        # At least: some of what runs may be others'.
        waiting = active + self._expected.of(tenant) - self._link.load().running
        if waiting > 0 and waiting + sequences > most:
            raise QueueFullError(
                f"{waiting} sequences of the tenant wait already, and {sequences} more are asked for, "
                f"but at most {most} can wait (max_waiting)",
                retry_after=1.0,
            )

    def room(self, tenant: str, names: Sequence[str], sequences: int) -> AbstractContextManager[None]:
        self.check_room(tenant, len(names) * sequences)
        return self._expected.expect(tenant, names, sequences)

    async def generate(
        self,
        prompt: Prompt,
        params: RequestParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> AsyncIterator[Event]:
        self._counters.received += 1
        self._counters.active += 1
        name = request_id or uuid.uuid4().hex
        record = self._recorder.received()
        try:
            requests, stream = await self._prepare(prompt, params, name, options or NO_OPTIONS, record)
        except BaseException as error:
            self._counters.active -= 1
            if not isinstance(error, Exception):  # cancelled while its prompt was tokenized
                self._counters.aborted += 1
                record.aborted(CLIENT_GONE)
                raise
            self._counters.rejected += 1
            record.rejected(error.code if isinstance(error, JaxserveError) else ErrorCode.INTERNAL)
            if isinstance(error, JaxserveError):
                raise
            logger.exception("a request could not be prepared")
            raise contained(error, "its preparation") from error
        self._requests[name] = stream
        self._streams.update((request.id, stream) for request in requests)
        self._expected.came(stream.tenant, name)
        try:
            self._link.add(requests)
            if self._watch is None:
                self._watch_streams()
            while not (stream.outputs.done and stream.events.empty):
                event = await stream.events.take()
                if stream.demoted and stream.events.empty:
                    self._demote(stream, demoted=False)
                yield event
        finally:
            self._close(name, stream)

    async def encode(self, text: str, *, add_special_tokens: bool = True, last: int | None = None) -> list[int]:
        if last is None:
            self.bounds.check_text(text)
        else:
            text = self.bounds.end_of(text, last)
        return await self._texts.encode(text, add_special_tokens=add_special_tokens)

    async def run_long(self, function: Callable[[], Result]) -> Result:
        return await self._texts.run_long(function)

    async def render_chat(self, messages: Sequence[ChatMessage], template_arguments: Mapping[str, Any]) -> Prompt:
        self.check_health()
        bounds = self.bounds
        bounds.check_messages(messages)
        return {"prompt_token_ids": await self._texts.render(messages, template_arguments, bounds.text_bytes)}

    async def abort(self, request_id: str) -> bool:
        stream = self._requests.get(request_id)
        if stream is None or stream.outputs.done:
            return False
        self._link.abort(stream.outputs.active_ids)
        events = stream.outputs.abort()
        record_events(stream.record, events, self._clock.now())
        for event in events:
            stream.events.put(event)
        return True

    async def reset_prefix_cache(self) -> None:
        await self.call(Flush())

    async def call(self, call: EngineCall[Result]) -> Result:
        return await self._link.call(call)

    def stats(self) -> EngineStats:
        load, counters = self._link.load(), self._counters
        return EngineStats(
            running=load.running,
            waiting=load.waiting,
            pages_total=load.pages_total,
            pages_free=load.pages_free,
            received=counters.received,
            active=counters.active,
            finished=counters.finished,
            aborted=counters.aborted,
            rejected=counters.rejected,
            preemptions=load.preemptions,
            lost_tokens=load.lost_tokens,
            prefix_queried_tokens=load.prefix_queried_tokens,
            prefix_hit_tokens=load.prefix_hit_tokens,
            page_size=load.page_size,
            imbalance=load.imbalance,
        )

    def heartbeat_age(self) -> float:
        return time.monotonic() - self._link.heartbeat

    def lateness(self) -> Lateness:
        return self._link.lateness(time.monotonic())

    @property
    def death(self) -> EngineDeath | None:
        return self._link.death

    def check_health(self) -> None:
        if self._failure is not None:
            raise self._failure.copy()
        if self._draining:
            raise DrainingError("the server is shutting down", retry_after=1.0)

    async def drain(self, timeout: float) -> None:
        self._draining = True
        deadline = time.monotonic() + timeout
        while self._requests and self._failure is None and time.monotonic() < deadline:
            await asyncio.sleep(DRAIN_POLL)
        self._fail_all(DrainingError("the server shut down before the request was done", retry_after=1.0))
        await self._link.close()
        await self._texts.close()

    def deliver(self, outcomes: Sequence[TurnOutcome]) -> None:
        ended: list[str] = []
        now = self._clock.now()
        for outcome in outcomes:
            stream = self._streams.get(outcome.ids[0] if isinstance(outcome, Refusal) else outcome.id)
            if stream is None or stream.outputs.done:  # its reader went away, or it failed
                continue
            if isinstance(outcome, Refusal):
                stream.outputs.fail(outcome.error)  # the engine has nothing of it to end
                stream.events.fail(outcome.error)
                continue
            try:
                ended += self._deliver(stream, outcome, now)
            except Exception as failure:
                logger.exception("an output of request %s could not be delivered", stream.outputs.request_id)
                error = contained(failure, "delivering its output")
                ended += stream.outputs.fail(error)
                stream.events.fail(error)
        self._recorder.flush(now)
        if ended:
            self._link.abort(ended)

    def _deliver(self, stream: _Stream, update: Update, now: float) -> list[str]:
        """Hand what an update gave to the reader. Returns the sequences that the engine must end."""
        pushed = stream.outputs.push(update)
        record_events(stream.record, pushed.events, now)
        for event in pushed.events:
            stream.events.put(event)
        if pushed.error is not None:
            stream.events.fail(pushed.error)
        elif stream.events.behind:
            self._hold_back(stream)
        return pushed.end

    def lost(self, error: JaxserveError) -> None:
        self._failure = error
        self._fail_all(error)

    def paused(self, error: JaxserveError) -> None:
        self._failure = error
        for stream in self._requests.values():
            stream.promise = stream.promise.excused()

    def found(self, description: EngineDescription) -> None:
        self._engines += 1
        self._model = description.model
        # The origin is another, or requests without a seed would draw those of the first engine's again.
        self._intake = Intake.by_rules(self.tokenizer, description.rules, f"{self._origin}{self._engines}.")
        self._failure = None

    async def _prepare(
        self, prompt: Prompt, params: RequestParams, name: str, options: RequestOptions, record: RequestRecord
    ) -> tuple[list[EngineRequest], _Stream]:
        self.check_health()
        _check_name(name)
        arrival = self._clock.now()
        self.bounds.check((prompt,), params)
        tokens = await self._tokenized(prompt)
        intake = self._intake

        def prepare() -> tuple[list[EngineRequest], RequestOutputs | PooledOutputs]:
            if isinstance(params, PoolingParams):
                request, pooler = intake.prepare_pooled(tokens, params, name, arrival, options)
                return [request], PooledOutputs(name, request, pooler, params, self._clock)
            requests = intake.prepare(tokens, params, name, arrival, options)
            shown = self._markup if options.shows_markup else NO_TOKENS
            return requests, RequestOutputs(name, requests, self.tokenizer, self._clock, shown)

        requests, outputs = await self._texts.run(prepare)
        self.check_health()
        if name in self._requests:  # looked at after the wait: nothing can come between this and the caller's entry
            raise InvalidRequestError(f"request_id {name!r} is active already", param="request_id")
        record.prepared(requests[0].service_class, len(requests[0].prompt), arrival)
        promise = Promise(requests[0], self._clock.now(), self._limits.stalled_seconds)
        return requests, _Stream(outputs, record, EventBuffer(self._limits_of(requests[0])), promise, options.tenant)

    async def _tokenized(self, prompt: Prompt) -> Prompt:
        """The prompt as tokens; whatever has no text in it is left for the intake to refuse."""
        text = prompt.get("prompt") if isinstance(prompt, Mapping) and "prompt_token_ids" not in prompt else prompt
        if not isinstance(text, str) or not text:
            return prompt
        return {"prompt_token_ids": await self._texts.encode(text)}  # its bounds were checked with the request's

    def _limits_of(self, request: EngineRequest) -> StreamLimits:
        """Batch is promised no token at any time."""
        batch = request.service_class is ServiceClass.BATCH
        return replace(self._limits, idle_seconds=math.inf) if batch else self._limits

    def _hold_back(self, stream: _Stream) -> None:
        """Its reader falls behind: the request gives way to others, and ends where too much waits."""
        if stream.outputs.done:
            return
        try:
            stream.events.check()
        except SlowReaderError as error:
            self._cut_off(stream, error)
        else:
            self._demote(stream, demoted=True)

    def _demote(self, stream: _Stream, *, demoted: bool) -> None:
        if demoted != stream.demoted:
            stream.demoted = demoted
            self._link.demote(stream.outputs.active_ids, demoted=demoted)

    def _cut_off(self, stream: _Stream, error: JaxserveError) -> None:
        self._link.abort(stream.outputs.fail(error))
        stream.events.fail(error)

    def _watch_streams(self) -> None:
        """End streams that stand still or are overdue, and look again in a while for as long as there are any."""
        now, loop = time.monotonic(), asyncio.get_running_loop()
        held_up = self._watch is not None and loop.time() - self._watch.when() > WATCH_SECONDS
        for stream in self._requests.values():
            if stream.outputs.done:
                continue
            try:
                stream.events.check_time(now)
                if not held_up:  # else what the engine had to say may be there, unread
                    stream.promise.check(now, self._link.heartbeat, started=stream.outputs.started)
            except JaxserveError as error:
                self._cut_off(stream, error)
        self._watch = loop.call_later(WATCH_SECONDS, self._watch_streams) if self._requests else None

    def _close(self, name: str, stream: _Stream) -> None:
        """The one place a request ends: whatever of it is still active is aborted."""
        outputs = stream.outputs
        active = outputs.active_ids
        if active:
            self._link.abort(active)
        for sequence in outputs.ids:
            del self._streams[sequence]
        del self._requests[name]
        self._counters.active -= 1
        if outputs.error is not None and not outputs.started:
            self._counters.rejected += 1
            stream.record.rejected(outputs.error.code)
        elif outputs.error is not None or active or outputs.was_aborted:
            self._counters.aborted += 1
            stream.record.aborted(outputs.error.code if outputs.error is not None else CLIENT_GONE if active else ABORTED)
        else:
            self._counters.finished += 1
            stream.record.finished()

    def _fail_all(self, error: JaxserveError) -> None:
        for stream in self._requests.values():
            if not stream.outputs.done:
                stream.outputs.fail(error)  # the engine runs none of it any more, or is about to stop
                stream.events.fail(error.copy())


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError("request_id must be valid Unicode, without lone surrogates", param="request_id") from error


def record_events(record: RequestRecord, events: Iterable[Event], now: float) -> None:
    for event in events:
        if isinstance(event, Delta):
            record.tokens(event.index, len(event.token_ids), now)
        elif isinstance(event, Started):
            record.started(len(event.prompt_token_ids), event.queue_time, now)
        else:
            record.ended(event.index, event.finish_reason.value, event.usage.completion_tokens, now)
