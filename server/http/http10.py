"""Answers for HTTP/1.0, which knows no chunks: a body of unknown length ends with the connection (RFC 9112, section 6.3)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


def without_chunks(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """The application, whose answer of unknown length is written as it is; uvicorn would send it in chunks all the same."""

    async def answering(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        plain = False

        async def sending(message: Any) -> None:
            nonlocal plain
            if message["type"] == "http.response.start" and _is_of_unknown_length(cycle, message):
                plain = True
                _begin(cycle, message)
            elif plain:
                await _go_on(cycle, message)
            else:
                await send(message)

        await app(scope, receive, sending)

    return answering


def _is_of_unknown_length(cycle: RequestResponseCycle, start: Any) -> bool:
    names = {name.lower() for name, _ in start["headers"]}
    return b"content-length" not in names and cycle.scope["method"] != "HEAD" and start["status"] not in _WITHOUT_BODY


def _begin(cycle: RequestResponseCycle, start: Any) -> None:
    if cycle.disconnected:
        return
    cycle.response_started = True
    headers = [*cycle.default_headers, *start["headers"], (b"connection", b"close")]
    lines = [name + b": " + value + b"\r\n" for name, value in headers]
    cycle.transport.write(b"".join([STATUS_LINE[start["status"]], *lines, b"\r\n"]))


async def _go_on(cycle: RequestResponseCycle, message: Any) -> None:
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    cycle.transport.write(message.get("body", b""))
    if not message.get("more_body", False):
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.transport.close()
        cycle.on_response()
