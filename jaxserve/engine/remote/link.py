"""The front end's side: an EngineLink to another process, which may die and come back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, cast

import msgspec
import zmq

from jaxserve.engine.activity import Activity, Lateness
from jaxserve.engine.calls import EngineCall, answer_type
from jaxserve.engine.death import EngineDeath
from jaxserve.engine.link import EngineDescription, EngineLoad, HeldChange, LinkSink
from jaxserve.engine.loop import Refusal
from jaxserve.engine.remote.clocks import FarClock
from jaxserve.engine.remote.codec import decoder, encode
from jaxserve.engine.remote.connection import Connection
from jaxserve.engine.remote.curve import require_key
from jaxserve.engine.remote.messages import (
    Abort,
    Add,
    Answer,
    Call,
    Demote,
    Farewell,
    FromFrontend,
    Held,
    Hello,
    Ping,
    Pong,
    Turned,
    Watch,
    Welcome,
    decode_from_engine,
    protocol,
)
from jaxserve.errors import EngineDeadError, InternalError, JaxserveError, brief, contained
from jaxserve.scheduler.request import EngineRequest

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.1  # between two connections
PING_SECONDS = 10.0  # between two looks at another machine's clock


class _Ended(Exception):
    def __init__(self, error: JaxserveError) -> None:
        super().__init__(error.message)
        self.error = error


class RemoteLink:
    """An EngineLink over ZeroMQ; see there. Belongs to the event loop that it is made in.

    An engine that went away is waited for: the next one that listens at the address is `found`.

    Args:
        address: the endpoint that the engine listens at, now or later.
        key: its public key, if it has keys; an engine of another machine must. Raises ConfigError.
    """

    def __init__(self, address: str, key: str | None = None) -> None:
        require_key(address, key)
        self._address = address
        self._key = key
        self._clock: FarClock | None = None  # the engine's; None where it is of this machine, whose processes share one
        self._pinged = -math.inf
        self._welcomed: EngineDescription | None = None  # an engine that is there, and whose clock is not known yet
        self._context = zmq.Context()
        self._connection: Connection | None = None
        self._sink: LinkSink | None = None
        self._holds: Callable[[HeldChange], None] | None = None
        self._heartbeat = -math.inf
        self._heard = -math.inf
        self._activity = Activity(-math.inf)
        self._load = EngineLoad()
        self._death: EngineDeath | None = None
        self._description: asyncio.Future[EngineDescription] = asyncio.get_running_loop().create_future()
        self._error: JaxserveError | None = EngineDeadError("the engine has not started")
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._running = asyncio.create_task(self._run())

    async def described(self) -> EngineDescription:
        """Wait for an engine, and what it says of itself."""
        return await asyncio.shield(self._description)

    @property
    def heartbeat(self) -> float:
        """Time of the latest turn that is known of; minus infinity before the first."""
        return self._heartbeat

    @property
    def heard(self) -> float:
        """Time at which anything came from an engine; minus infinity before."""
        return self._heard

    def lateness(self, now: float) -> Lateness:
        if self._error is not None:  # which says more
            return Lateness()
        return self._activity.lateness(now, now - self._heard)

    @property
    def death(self) -> EngineDeath | None:
        return self._death

    def connect(self, sink: LinkSink) -> None:
        """Tell `sink` what comes; at once, if the engine is gone."""
        self._sink = sink
        if self._error is not None:
            sink.lost(self._error)

    def explain(self, error: JaxserveError) -> None:
        """Say more about why no engine is there; does nothing if one is."""
        if self._error is not None:
            self._lose(error)

    def move(self, address: str) -> None:
        """Look for an engine at another address from now on. One that is there stays connected."""
        require_key(address, self._key)
        self._address = address
        if self._error is not None and self._connection is not None:
            self._connection.give_up()

    def add(self, requests: Sequence[EngineRequest]) -> None:
        if self._clock is not None:
            requests = [_by_its_clock(one, self._clock.ahead) for one in requests]
        try:
            message = Add.of(requests)
        except Exception as error:
            logger.exception("request %s could not be encoded", requests[0].id)
            refusal = Refusal(tuple(one.id for one in requests), contained(error, "sending it to the engine"))
            asyncio.get_running_loop().call_soon(self._refuse, refusal)  # after the caller has registered the request
        else:
            self._send(message)

    def _refuse(self, refusal: Refusal) -> None:
        if self._sink is not None and self._error is None:
            self._sink.deliver([refusal])

    def abort(self, ids: Sequence[str]) -> None:
        self._send(Abort(list(ids)))

    def demote(self, ids: Sequence[str], *, demoted: bool) -> None:
        self._send(Demote(list(ids), demoted))

    async def call(self, call: EngineCall[Result]) -> Result:
        if self._error is not None:
            raise self._error.copy()
        number = next(self._numbers)
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        self._send(Call(number, msgspec.Raw(encode(call))))
        try:
            return cast(Result, decoder(answer_type(call)).decode(await answer))
        finally:
            del self._calls[number]

    def watch(self, every: int, holds: Callable[[HeldChange], None]) -> None:
        """Be told what the engine's prefix cache holds: everything, and then what changes, until the engine is lost.

        Of the pages of a prompt only the last of every so many matter; there may be others.
        """
        self._holds = holds
        self._send(Watch(every))

    def load(self) -> EngineLoad:
        return self._load

    async def close(self) -> None:
        """Leave the engine; it aborts what it still runs for this front end."""
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running
        self._lose(EngineDeadError("the link to the engine is closed"))
        self._context.term()

    def _send(self, message: FromFrontend) -> None:
        if self._connection is not None:  # else the sink was told that all its requests are lost
            self._connection.send(encode(message))

    async def _run(self) -> None:
        """One connection after another. Each has a name of its own: nothing of one reaches the next."""
        while True:
            self._clock, self._welcomed = None if self._address.startswith("ipc:") else FarClock(), None
            self._connection = Connection(self._context, self._address, self._take, self._key)
            try:
                self._send(Hello(protocol()))
                await self._connection.ended()
                raise _Ended(self._error or EngineDeadError("the engine's process ended"))
            except _Ended as ended:
                if self._error is None:
                    logger.error("the engine is lost: %s", ended.error.message)
                self._lose(ended.error)
            except Exception as error:
                logger.exception("what the engine said could not be taken in")
                self._lose(InternalError(f"the API server failed to process an engine message: {brief(error)}"))
            finally:
                self._connection.close()
                self._connection = None
            await asyncio.sleep(RETRY_SECONDS)  # an engine that bids farewell may be there for a moment still

    def _take(self, content: bytes) -> None:
        message = decode_from_engine(content)
        self._heard = time.monotonic()
        if isinstance(message, Turned):
            self._turned(message)
            if (message.updates or message.refusals) and self._sink is not None:
                self._sink.deliver([*message.refusals, *message.updates])
        elif isinstance(message, Held):
            if self._holds is not None:
                self._holds(message.change)
        elif isinstance(message, Answer):
            self._answer(message)
        elif isinstance(message, Welcome):
            if self._clock is None:
                self._welcome(message.description)
            else:
                self._welcomed = message.description
                self._ping()
        elif isinstance(message, Pong):
            self._ponged(message)
        else:
            assert isinstance(message, Farewell)
            self._death = message.death or self._death
            raise _Ended(message.error)

    def _turned(self, message: Turned) -> None:
        self._load = message.load
        if self._clock is None:
            self._heartbeat, self._activity = message.heartbeat, message.activity
        elif self._welcomed is None:
            ahead, activity = self._clock.ahead, message.activity
            self._heartbeat, self._activity = message.heartbeat - ahead, Activity(activity.began - ahead, activity.expected)
            if self._heard - self._pinged >= PING_SECONDS:
                self._ping()

    def _ping(self) -> None:
        self._pinged = time.monotonic()
        self._send(Ping(self._pinged))

    def _ponged(self, message: Pong) -> None:
        """The engine's clock was read; it is found with the first time, for its requests have times."""
        if self._clock is not None:
            self._clock.read(message.sent, message.now, self._heard)
        if self._welcomed is not None:
            description, self._welcomed = self._welcomed, None
            self._welcome(description)

    def _answer(self, message: Answer) -> None:
        answer = self._calls.get(message.number)
        if answer is None or answer.done():  # its caller went away
            return
        if message.error is None:
            answer.set_result(message.result)
        else:
            answer.set_exception(message.error)

    def _welcome(self, description: EngineDescription) -> None:
        self._error = None
        if self._description.done():
            self._description = asyncio.get_running_loop().create_future()
        self._description.set_result(description)
        if self._sink is not None:
            self._sink.found(description)

    def _lose(self, error: JaxserveError) -> None:
        self._error = error
        self._load = EngineLoad()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(error.copy())
        if self._sink is not None:
            self._sink.lost(error)


def _by_its_clock(request: EngineRequest, ahead: float) -> EngineRequest:
    """A request whose times are those of a clock that is so much before ours."""
    return replace(
        request,
        arrival=request.arrival + ahead,
        queue_deadline=request.queue_deadline + ahead,
        deadline=request.deadline + ahead,
    )
