"""What supervisor and front ends say to each other: calls of the supervisor's services by name, and notices to front ends.

It goes over the socket that a child process has to its parent: nobody else can reach it, and it ends with either side.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping

import msgspec

from jaxserve.children import receive_frame, send_frame
from jaxserve.engine.remote.messages import WireError, error_of, wire_error
from jaxserve.errors import DrainingError, InternalError

_LOG = logging.getLogger(__name__)

Service = Callable[[str, bytes], bytes]
"""(front end, payload) -> answer. May raise a JaxserveError, which the caller gets; must not block."""


class _Call(msgspec.Struct, frozen=True, tag="call", array_like=True):
    number: int
    service: str
    payload: bytes


class _Answer(msgspec.Struct, frozen=True, tag="answer", array_like=True):
    number: int
    payload: bytes
    error: WireError | None


class _Notice(msgspec.Struct, frozen=True, tag="notice", array_like=True):
    topic: str
    payload: bytes


_ENCODER = msgspec.msgpack.Encoder()
_CALL = msgspec.msgpack.Decoder(_Call)
_FROM_SUPERVISOR: msgspec.msgpack.Decoder[_Answer | _Notice] = msgspec.msgpack.Decoder(_Answer | _Notice)


class Control:
    """A front end's way to the supervisor.

    Args:
        reader: its socket.
        writer: likewise.
        notices: what to do with notices, by topic.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, notices: Mapping[str, Callable[[bytes], None]]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._notices = notices
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._listening = asyncio.create_task(self._listen())

    async def call(self, service: str, content: bytes = b"") -> bytes:
        """Call a service. Raises what it raised, InternalError if there is none, or DrainingError if the supervisor is gone."""
        if self._listening.done():
            raise DrainingError("the supervisor is gone")
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        send_frame(self._writer, _ENCODER.encode(_Call(number, service, content)))
        try:
            payload: bytes = await answer
            return payload
        finally:
            del self._waiting[number]

    def tell(self, service: str) -> None:
        """Call a service whose answer nobody waits for."""
        send_frame(self._writer, _ENCODER.encode(_Call(next(self._numbers), service, b"")))

    async def gone(self) -> None:
        """Wait for the supervisor's end."""
        await asyncio.shield(self._listening)

    async def _listen(self) -> None:
        while (content := await receive_frame(self._reader)) is not None:
            message = _FROM_SUPERVISOR.decode(content)
            if isinstance(message, _Notice):
                self._notices[message.topic](message.payload)
                continue
            answer = self._waiting.get(message.number)
            if answer is None or answer.done():  # its caller went away
                continue
            if message.error is None:
                answer.set_result(message.payload)
            else:
                answer.set_exception(error_of(message.error))
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(DrainingError("the supervisor is gone"))


async def answer_calls(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, services: Mapping[str, Service]
) -> None:
    """In the supervisor: answer a front end's calls until it is gone.

    Args:
        reader: its socket.
        writer: likewise.
        name: told to the services.
        services: by name.
    """
    while (content := await receive_frame(reader)) is not None:
        call = _CALL.decode(content)
        send_frame(writer, _ENCODER.encode(_answered(call, name, services)))


def notify(writer: asyncio.StreamWriter, topic: str, payload: bytes) -> None:
    """In the supervisor: tell a front end something."""
    send_frame(writer, _ENCODER.encode(_Notice(topic, payload)))


def _answered(call: _Call, name: str, services: Mapping[str, Service]) -> _Answer:
    service = services.get(call.service)
    if service is None:
        return _Answer(call.number, b"", wire_error(InternalError(f"the supervisor has no service {call.service!r}")))
    try:
        return _Answer(call.number, service(name, call.payload), None)
    except Exception as error:
        _LOG.debug("the service %s failed", call.service, exc_info=True)
        return _Answer(call.number, b"", wire_error(error))
