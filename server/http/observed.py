"""Watches every HTTP exchange."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from contextlib import ExitStack

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.observe.exchange import Exchange
from server.observe.observatory import Observatory

UNMATCHED = "unmatched"
ABORTED = "499"  # the client went away before it had an answer
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RouteNames:
    """Names paths by the template of the route that takes them: there are as many paths as clients think of."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        found = [route for route in routes if isinstance(route, Route)]
        self._plain = frozenset(route.path for route in found if "{" not in route.path)
        self._templates = [(route.path_regex, route.path) for route in found if route.path not in self._plain]

    def of(self, path: str) -> str:
        if path in self._plain:
            return path
        return next((template for pattern, template in self._templates if pattern.match(path)), UNMATCHED)


class Observed:
    """Watches every exchange of an application."""

    def __init__(self, app: ASGIApp, observatory: Observatory, names: RouteNames) -> None:
        self._app = app
        self._observatory = observatory
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(
            surface="http",
            method=scope["method"] if scope["method"] in _METHODS else "other",
            route=self._names.of(scope["path"]),
            request_id=scope["state"]["request_id"],
            traceparent=Headers(scope=scope).get("traceparent", ""),
            status=ABORTED,
        )
        scope["state"]["exchange"] = exchange
        with ExitStack() as stack:
            stack.enter_context(self._observatory.watching(exchange))

            def sending(message: Message) -> Awaitable[None]:
                if message["type"] == "http.response.start":
                    exchange.status = str(message["status"])
                    if Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream"):
                        stack.enter_context(self._observatory.servers.stream("http"))
                return send(message)  # awaited by the caller: events of streams pass here, one by one

            try:
                await self._app(scope, receive, sending)
            except Exception:
                exchange.status = "500"  # made of it further out
                raise
