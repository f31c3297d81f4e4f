"""The way between supervisor and front ends: calls with answers, and notices to front ends; `specs` says which there are.

It goes over the socket that a child process has to its parent: nobody else can reach it, and it ends with either side.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable

import msgspec

from jaxserve.children import receive_frame, send_frame
from jaxserve.engine.remote.codec import decoder, encode, presentable
from jaxserve.engine.replicas.resuming import Orders
from jaxserve.errors import DrainingError, InternalError, JaxserveError
from server.gateway.messages import Reply
from server.processes.specs import EngineFound, Notice, Question

_LOG = logging.getLogger(__name__)

Serve = Callable[[str, Question], Reply | Orders | Awaitable[Reply] | None]
"""(front end, question) -> answer, at once or later. May raise a JaxserveError, which the caller gets; must not block."""


class _Call(msgspec.Struct, frozen=True, array_like=True):
    """The question is decoded by itself: one that nobody understands is answered, too."""

    number: int
    question: msgspec.Raw


class _Answer(msgspec.Struct, frozen=True, tag="answer", array_like=True):
    number: int
    reply: Reply | Orders | None = None
    error: JaxserveError | None = None


class _Told(msgspec.Struct, frozen=True, tag="notice", array_like=True):
    notice: Notice


_CALL: msgspec.msgpack.Decoder[_Call] = decoder(_Call)
_QUESTION: msgspec.msgpack.Decoder[Question] = decoder(Question)
_FROM_SUPERVISOR: msgspec.msgpack.Decoder[_Answer | _Told] = decoder(_Answer | _Told)


class Control:
    """A front end's way to the supervisor."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, take: Callable[[Notice], None]) -> None:
        self._reader = reader
        self._writer = writer
        self._take = take
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Reply | Orders | None]] = {}
        self._listening = asyncio.create_task(self._listen())

    async def call(self, question: Question) -> Reply | None:
        """Ask. Raises what the answer raised, or DrainingError if the supervisor is gone."""
        reply = await self._ask(question)
        assert not isinstance(reply, Orders), "no answer to this question"
        return reply

    async def orders(self) -> Orders:
        """Ask which requests may run in an engine that was found. Raises as `call` does."""
        reply = await self._ask(EngineFound())
        assert isinstance(reply, Orders), "the answer to this question"
        return reply

    async def _ask(self, question: Question) -> Reply | Orders | None:
        if self._listening.done():
            raise DrainingError("the supervisor is gone")
        answer: asyncio.Future[Reply | Orders | None] = asyncio.get_running_loop().create_future()
        number = self._send(question)
        self._waiting[number] = answer
        try:
            return await answer
        finally:
            del self._waiting[number]

    def tell(self, question: Question) -> None:
        """Ask what nobody waits to be answered."""
        self._send(question)

    async def gone(self) -> None:
        await asyncio.shield(self._listening)

    def _send(self, question: Question) -> int:
        number = next(self._numbers)
        send_frame(self._writer, encode(_Call(number, msgspec.Raw(encode(question)))))
        return number

    async def _listen(self) -> None:
        while (content := await receive_frame(self._reader)) is not None:
            message = _FROM_SUPERVISOR.decode(content)
            if isinstance(message, _Told):
                self._take(message.notice)
                continue
            answer = self._waiting.get(message.number)
            if answer is None or answer.done():  # its caller went away
                continue
            if message.error is None:
                answer.set_result(message.reply)
            else:
                answer.set_exception(message.error)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(DrainingError("the supervisor is gone"))


async def answer_calls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, serve: Serve) -> None:
    """In the supervisor: answer a front end's calls until it is gone."""
    later: set[asyncio.Task[None]] = set()
    while (content := await receive_frame(reader)) is not None:
        call = _CALL.decode(content)
        answer = _answered(call, name, serve)
        if isinstance(answer, _Answer):
            send_frame(writer, encode(answer))
        else:
            task = asyncio.create_task(_answer_later(writer, call.number, answer))
            later.add(task)
            task.add_done_callback(later.discard)


async def _answer_later(writer: asyncio.StreamWriter, number: int, answer: Awaitable[Reply]) -> None:
    try:
        send_frame(writer, encode(_Answer(number, await answer)))
    except Exception as error:
        send_frame(writer, encode(_Answer(number, error=presentable(error))))


def notify(writer: asyncio.StreamWriter, notice: Notice) -> None:
    """In the supervisor: tell a front end something."""
    send_frame(writer, encode(_Told(notice)))


def _answered(call: _Call, name: str, serve: Serve) -> _Answer | Awaitable[Reply]:
    try:
        answer = serve(name, _QUESTION.decode(call.question))
        return answer if isinstance(answer, Awaitable) else _Answer(call.number, answer)
    except msgspec.DecodeError as error:
        return _Answer(call.number, error=InternalError(f"the supervisor did not understand {name}: {error}"))
    except Exception as error:
        _LOG.debug("a call of %s failed", name, exc_info=True)
        return _Answer(call.number, error=presentable(error))
