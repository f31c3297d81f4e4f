"""Server-sent events: frames, and a response that ends its work when the client goes away."""

from __future__ import annotations

import logging
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


def frame(content: Any) -> bytes:
    """One event."""
    return b"data: " + _encode(content) + b"\n\n"


def event_frame(content: Mapping[str, Any]) -> bytes:
    """One event that has a name: its `type`."""
    kind: str = content["type"]
    return b"event: " + kind.encode() + b"\ndata: " + _encode(content) + b"\n\n"


def error_frame(error: JaxserveError) -> bytes:
    """The last event of a stream of OpenAI's chunks that failed."""
    return frame(http_body(error))


async def stream(
    request: Request, frames: AsyncGenerator[bytes, None], failed: Callable[[JaxserveError], bytes] = error_frame
) -> Response:
    """Answer with the frames as they come; `failed` makes the last one where the rest cannot come.

    Waits for the first, so that a request refused at once gets a proper status. Raises what comes instead of it.
    """
    try:
        first = await until_gone(request.receive, _first(frames))
    except BaseException:
        await frames.aclose()
        raise
    return EventStream(first, frames, failed)


async def _first(frames: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(frames)


class EventStream(Response):
    """A stream that has begun. An error from here on is an error event, then the end."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, frames: AsyncGenerator[bytes, None], failed: Callable[[JaxserveError], bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._frames = frames
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; close the frames whatever happens."""
        async with aclosing(self._frames):
            try:
                await until_gone(receive, self._send(send))
            except CancelledRequestError:
                return  # nobody is left to tell

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        try:
            async for item in self._frames:
                await send({"type": "http.response.body", "body": item, "more_body": True})
        except JaxserveError as error:
            await send({"type": "http.response.body", "body": self._failed(error), "more_body": True})
        except Exception:
            _LOG.exception("a stream failed")
            body = self._failed(InternalError("the server failed in the middle of this stream"))
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
