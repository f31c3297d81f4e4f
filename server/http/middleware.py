"""What every HTTP exchange gets: a request id, and an answer even where the code under it breaks."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxserve.errors import InternalError
from server.http.error_bodies import speaks_anthropic
from server.http.failures import error_response
from server.requests import new_id

_LOG = logging.getLogger(__name__)
_LONGEST_ID = 256


class Envelope:
    """Echoes X-Request-Id, or makes one, and turns an unexpected exception into a 500 with the usual body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one exchange."""
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
