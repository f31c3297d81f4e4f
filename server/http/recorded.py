"""Answers of the application as they are recorded: status and headers as the first piece, then the body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope

from server.context import RequestContext
from server.gateway.call import Call
from server.gateway.recordings import Add
from server.unsupported.notes import NOTES, Lenience, Notes

_EVENTS = "text/event-stream"


class Head(msgspec.Struct, frozen=True, array_like=True):
    """Status and headers of an answer, and the path that was asked."""

    status: int
    headers: list[tuple[bytes, bytes]]
    path: str

    @property
    def is_stream(self) -> bool:
        """Whether a stream of events follows."""
        return Headers(raw=self.headers).get("content-type", "").startswith(_EVENTS)


_encode = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(Head).decode

Cut = Callable[[bytes], Iterable[bytes]]
"""Makes pieces of the next part of a body."""


def uncut(part: bytes) -> Iterable[bytes]:
    return (part,)


class Recorder:
    """Lets an application answer into recordings."""

    def __init__(self, app: ASGIApp, lenience: Lenience) -> None:
        self._app = app
        self._lenience = lenience

    async def record(
        self, call: Call, scope: Scope, body: bytes, add: Add, cutting: Callable[[Head], Cut] = lambda head: uncut
    ) -> int:
        """Add the answer's pieces as they come; return its status. The application sees a client that stays until this task
        is cancelled.
        """
        scope["state"]["context"] = RequestContext(call, scope["state"]["exchange"])
        NOTES.set(notes := Notes(self._lenience))
        status = 0
        cut: Cut = uncut

        async def sending(message: Message) -> None:
            nonlocal status, cut
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(notes.headers())
                head = Head(status, list(message["headers"]), scope["path"])
                cut = cutting(head)
                await add(_encode(head))
            elif message.get("body"):
                for piece in cut(message["body"]):
                    await add(piece)
                call.handed()

        try:
            await self._app(dict(scope), with_body(body, _never), sending)
        finally:
            call.close()
        return status


def with_body(body: bytes, rest: Receive) -> Receive:
    """A channel that gives the body, then what the rest gives."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            return await rest()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")
