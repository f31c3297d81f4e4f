"""Server-sent events: frames, and a response that ends its work when the client goes away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from jaxserve.errors import CancelledRequestError, InternalError, JaxserveError
from server.errors import http_body
from server.http.disconnect import until_gone

_LOG = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"  # a comment, which clients pass over


def frame(content: Any) -> bytes:
    return b"data: " + _encode(content) + b"\n\n"


def event_frame(content: Mapping[str, Any]) -> bytes:
    """One event that has a name: its `type`."""
    kind: str = content["type"]
    return b"event: " + kind.encode() + b"\ndata: " + _encode(content) + b"\n\n"


def error_frame(error: JaxserveError) -> bytes:
    return frame(http_body(error))


async def stream(
    request: Request, frames: AsyncGenerator[bytes, None], failed: Callable[[JaxserveError], bytes] = error_frame
) -> Response:
    """Answer with the frames as they come; `failed` makes the last one where the rest cannot come.

    Waits for the first, so that a request that is refused gets a proper status; raises what comes instead of it. After a time
    without either the stream begins all the same, with a comment: proxies and clients give up on silence.
    """
    silence: float = request.app.state.sse_keepalive
    first = asyncio.create_task(_first(frames))
    try:
        await until_gone(request.receive, asyncio.wait((first,), timeout=silence))
        if first.done():
            first.result()
    except BaseException:
        await _cancelled(first)
        await frames.aclose()
        raise
    return EventStream(first, frames, failed, silence)


async def _first(frames: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(frames)


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class EventStream(Response):
    """A stream that has begun. An error from here on is an error event, then the end.

    Args:
        first: its first frame, which may be still to come.
        silence: seconds without a frame after which a comment is sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: asyncio.Task[bytes],
        frames: AsyncGenerator[bytes, None],
        failed: Callable[[JaxserveError], bytes],
        silence: float,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._frames = frames
        self._failed = failed
        self._silence = silence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; close the frames whatever happens."""
        async with aclosing(self._frames):
            try:
                await until_gone(receive, self._send(send))
            except CancelledRequestError:
                return  # nobody is left to tell
            finally:
                await _cancelled(self._first)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        pieces = _Pieces(send, self._silence)
        if not self._first.done():
            await pieces.send(KEEP_ALIVE)
        keeping_alive = asyncio.create_task(pieces.keep_alive())
        try:
            await pieces.send(await self._first)
            async for item in self._frames:
                await pieces.send(item)
        except JaxserveError as error:
            await pieces.send(self._failed(error))
        except Exception:
            _LOG.exception("a stream failed")
            await pieces.send(self._failed(InternalError("the server failed in the middle of this stream")))
        finally:
            await _cancelled(keeping_alive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Pieces:
    """Sends the pieces of a body, and a comment where none came for a while."""

    def __init__(self, send: Send, silence: float) -> None:
        self._send = send
        self._silence = silence
        self._sending = False
        self._sent = time.monotonic()

    async def send(self, piece: bytes) -> None:
        self._sending = True
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self._sending = False
        self._sent = time.monotonic()

    async def keep_alive(self) -> None:
        """Send comments for as long as this runs. Where a piece is on its way there is no silence."""
        while True:
            rest = self._silence if self._sending else self._sent + self._silence - time.monotonic()
            if rest > 0.0:
                await asyncio.sleep(rest)
            else:
                await self.send(KEEP_ALIVE)
