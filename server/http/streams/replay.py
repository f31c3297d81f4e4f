"""Sends a recorded answer to one reader of several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial

from fastapi import Response
from starlette.types import Receive, Scope, Send

from jaxserve.errors import CancelledRequestError, JaxserveError
from server.errors import http_body
from server.http.disconnect import until_gone
from server.http.error_bodies import body_of, speaks_anthropic
from server.http.recorded import Head, decode_head
from server.http.sse import KEEP_ALIVE, EventStream, event_frame, frame

_RESPONSES_PATH = "/v1/responses"


async def head_of(pieces: AsyncGenerator[bytes, None], receive: Receive) -> Head:
    """Status and headers of the answer whose pieces come.

    Raises what comes instead of them, and CancelledRequestError if the client leaves; the pieces are closed then.
    """
    try:
        return decode_head(await until_gone(receive, _next(pieces)))
    except BaseException:
        await pieces.aclose()
        raise


def replay(
    head: Head, pieces: AsyncGenerator[bytes, None], silence: float, headers: Mapping[str, str], *, resumed: bool = False
) -> Response:
    """The answer with more headers; it must be sent, or the pieces stay open.

    Args:
        silence: seconds without an event after which a stream is sent a comment.
        resumed: whether the client comes back: a stream begins at once then.
    """
    response: Response
    if head.is_stream:
        frames = _opened(pieces) if resumed else pieces
        response = EventStream(asyncio.create_task(_next(frames)), frames, partial(_failure, head.path), silence)
    else:
        response = _Whole(pieces)
    response.status_code = head.status
    response.raw_headers[:] = [*head.headers, *((name.lower().encode(), value.encode()) for name, value in headers.items())]
    return response


async def _next(pieces: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(pieces)


async def _opened(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """A stream that begins before the next event is there, if there is another."""
    yield KEEP_ALIVE
    async with aclosing(pieces):
        async for piece in pieces:
            yield piece


def _failure(path: str, error: JaxserveError) -> bytes:
    """What ends a stream that was asked for at a path."""
    if speaks_anthropic(path):
        return event_frame(body_of(error, path))
    if path == _RESPONSES_PATH:
        detail = http_body(error)["error"]
        return event_frame({"type": "error", **{name: detail[name] for name in ("code", "message", "param")}, "error": detail})
    return frame(body_of(error, path))


class _Whole(Response):
    """An answer that is no stream of events."""

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        super().__init__()
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces):
            try:
                await until_gone(receive, self._send(send))
            except CancelledRequestError:
                return  # nobody is left to tell

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
