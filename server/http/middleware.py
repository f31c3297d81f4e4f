"""What every HTTP exchange gets: its operation's one path, HEAD, a request id, and an answer even where code breaks."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxserve.errors import InternalError
from server.http.error_bodies import speaks_anthropic
from server.http.failures import error_response
from server.requests import new_id

_LOG = logging.getLogger(__name__)
_LONGEST_ID = 256
_VERSION = "/v1"
# First parts of paths under /v1: clients whose base URL lacks it leave it out.
_VERSIONED = frozenset({"models", "chat", "completions", "responses", "messages", "files", "batches", "embeddings", "streams"})


class Envelope:
    """Echoes X-Request-Id, or makes one, and turns an unexpected exception into a 500 with the usual body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if 0 < len(given) <= _LONGEST_ID else new_id("req")
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        def send_with_id(message: Message) -> Awaitable[None]:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                if speaks_anthropic(scope["path"]):
                    headers["request-id"] = request_id  # where Anthropic's clients look
            return send(message)  # awaited by the caller: events of streams pass here, one by one

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            _LOG.exception("request %s to %s failed", request_id, scope["path"])
            if started:  # nothing can be taken back: close the connection
                raise
            failure = InternalError("the server failed to answer this request")
            await error_response(failure, scope["path"])(scope, receive, send_with_id)


class Paths:
    """Gives every request the one path that its operation has, before anything looks at it: who may use it, what is counted.

    The request is answered at once, as it came. A redirect would lose the body of many clients, and the key of some.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = canonical(scope["path"])
            if path != scope["path"]:
                scope = {**scope, "path": path, "raw_path": path.encode(errors="surrogateescape")}
        await self._app(scope, receive, send)


def canonical(path: str) -> str:
    path = path.rstrip("/") or "/"
    return _VERSION + path if path[1:].partition("/")[0] in _VERSIONED else path


class Heads:
    """Lets whatever takes GET take HEAD; "head" in the state is for answers that would not end."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._getting = [route.path_regex for route in routes if isinstance(route, Route) and "GET" in (route.methods or ())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or not any(one.match(scope["path"]) for one in self._getting):
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}  # the connection, which sees HEAD, would not send it either
            await send(message)

        scope.setdefault("state", {})["head"] = True
        await self._app({**scope, "method": "GET"}, receive, sending)
