"""HEAD: what GET would answer, without its body."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Heads:
    """Lets whatever takes GET take HEAD.

    Args:
        app: what answers.
        routes: all that it has.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._getting = [route.path_regex for route in routes if isinstance(route, Route) and "GET" in (route.methods or ())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one exchange."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or not any(one.match(scope["path"]) for one in self._getting):
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}  # the connection, which sees HEAD, would not send it either
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, sending)
