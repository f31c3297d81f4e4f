"""What web pages may do: a browser lets any page send requests to a server of this machine, and tells where the page is from.

A page reads answers of another server only if that allows it (CORS), or if the page's own name leads there (DNS rebinding); and
it can send some requests, uploads and resets among them, without leave. So a server that asks for no API key looks at what
browsers say: the name that it was called by, and whether the page is its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxserve.config.server import ServerConfig, is_loopback
from jaxserve.config.web_pages import ANY, parse_hosts, parse_origins
from jaxserve.errors import PermissionDeniedError
from server.http.failures import error_response
from server.ports import host_of

_METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
_SHOWN = 200  # characters of a header in an error


@dataclass(frozen=True, slots=True)
class PageRules:
    """Which pages may send requests.

    Attributes:
        hosts: names that the server may be called by; None for any.
        origins: of pages that may, besides its own; "*" for any.
        asks_origin: whether others may not.
    """

    hosts: frozenset[str] | None
    origins: frozenset[str]
    asks_origin: bool

    @classmethod
    def of(cls, config: ServerConfig) -> PageRules:
        """Those of a configuration: with API keys, which pages of others do not have, names count only where they are given."""
        given = parse_hosts(config.allowed_hosts)
        origins = parse_origins(config.allowed_origins)
        known = given or (not config.has_keys and is_loopback(config.host))
        bound = f"[{config.host}]" if ":" in config.host else config.host
        hosts = frozenset({"localhost", "127.0.0.1", "[::1]", bound.lower(), *given}) if known and ANY not in given else None
        return cls(hosts, origins, asks_origin=not config.has_keys and ANY not in origins)

    def check(self, headers: Headers, method: str) -> None:
        """Raise PermissionDeniedError for a request of a page that may not send it. Who sends no such header is no browser."""
        host = headers.get("host")
        if self.hosts is not None and host is not None and host_of(host) not in self.hosts:
            raise _refusal("Host", host, "is not a name of this server", f"--allowed-hosts {host_of(host) or ANY}")
        if not self.asks_origin:
            return
        origin = headers.get("origin")
        if origin is not None:
            if origin.lower() not in self.origins and origin.partition("://")[2].lower() != (host or "").lower():
                raise _refusal("Origin", origin, "is of another server's page", f"--allowed-origins {origin}")
        elif headers.get("sec-fetch-site") == "cross-site" and not _is_visit(headers, method):
            raise _refusal("Sec-Fetch-Site", "cross-site", "is of another server's page", f"--allowed-origins {ANY}")


def _is_visit(headers: Headers, method: str) -> bool:
    """Whether somebody follows a link to a page of this server, which the page with the link does not see."""
    return method == "GET" and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _refusal(name: str, value: str, what: str, flag: str) -> PermissionDeniedError:
    shown = value if len(value) <= _SHOWN else value[:_SHOWN] + "..."
    return PermissionDeniedError(f"{name} {shown!r} {what}: {flag[: 2 * _SHOWN]} would let it in", param=name)


class Pages:
    """Refuses what pages may not send, before anything else looks at it."""

    def __init__(self, app: ASGIApp, rules: PageRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._rules.check(Headers(scope=scope), scope["method"])
            except PermissionDeniedError as error:
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Cors(CORSMiddleware):
    """Tells browsers which pages may read answers, errors too, with all of their headers."""

    def __init__(self, app: ASGIApp, origins: frozenset[str]) -> None:
        super().__init__(
            app,
            allow_origins=sorted(origins),
            allow_methods=_METHODS,
            allow_headers=(ANY,),
            allow_private_network=True,
            expose_headers=(ANY,),
        )

    def is_allowed_origin(self, origin: str) -> bool:
        return super().is_allowed_origin(origin.lower())

    def preflight_response(self, request_headers: Headers) -> Response:
        origin = request_headers["origin"]
        if not self.is_allowed_origin(origin):
            return error_response(_refusal("Origin", origin, "is of another server's page", f"--allowed-origins {origin}"), "")
        return super().preflight_response(request_headers)
