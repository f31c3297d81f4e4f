"""The gateway in front of the HTTP application: who asks, how long the body is, what is left, what was delivered."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxserve.errors import CancelledRequestError, InvalidRequestError, JaxserveError
from server.context import RequestContext
from server.gateway.call import Call
from server.gateway.gateway import Gateway
from server.gateway.idempotency import Add, fingerprint
from server.gateway.refusals import rate_limit_headers
from server.gateway.routes import has_weights, http_access, is_upload, takes_body
from server.http.disconnect import until_gone
from server.http.failures import error_response, methods_at
from server.http.headers import TENANT_HEADER
from server.http.held import Bodies, check_without_body
from server.unsupported.notes import NOTES, Notes

REPLAYED_HEADER = "Idempotency-Replayed"
_KEY_HEADER = "Idempotency-Key"
_GRACE_HEADER = "Idempotency-Grace"
_BEARER = b"bearer "


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """Status and headers of an answer, as a piece of its recording."""

    status: int
    headers: list[tuple[bytes, bytes]]


class Gate:
    """Lets in who may come in. The body of a request is read before the application sees it, but after it is known whose it
    is, and never beyond the limits; only that of an upload is left to the application.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway, bodies: Bodies, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._gateway = gateway
        self._bodies = bodies
        self._routes = [route for route in routes if isinstance(route, Route)]
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode_head = msgspec.msgpack.Decoder(_Head).decode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        access, upload = http_access(path), is_upload(method, path)
        try:
            call = self._gateway.call(scope["state"]["request_id"], _credentials(headers), access)
            scope["state"]["exchange"].name_tenant(_tenant(call, headers))
            keys = headers.getlist(_KEY_HEADER)
            if upload and keys:
                raise InvalidRequestError(f"{_KEY_HEADER} is not taken with an upload", param=_KEY_HEADER)
            if len(keys) > 1:
                raise InvalidRequestError(f"{_KEY_HEADER} must be given once, got {len(keys)}", param=_KEY_HEADER)
            grace = _grace(headers)
            if not takes_body(method, path) and (access == "open" or self._is_served(method, path)):  # else a 404 or a 405
                check_without_body(method, path, headers)
        except JaxserveError as error:
            await error_response(error, path)(scope, receive, send)
            return
        if upload or not takes_body(method, path):
            await self._plain(call, scope, receive, send)
            return
        with self._bodies.hold(call.account, has_weights=self._gateway.has_keys and has_weights(path)) as held:
            try:
                body = await held.read(receive, headers)
            except JaxserveError as error:
                await error_response(error, path)(scope, receive, send)
                return
            if keys and method == "POST":
                await self._keyed(call, keys[0], grace, body, scope, receive, send)
            else:
                await self._plain(call, scope, _with_body(body, receive), send)

    def _is_served(self, method: str, path: str) -> bool:
        return ("GET" if method == "HEAD" else method) in methods_at(self._routes, path)

    async def _plain(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["context"] = RequestContext(call, scope["state"]["exchange"])
        NOTES.set(notes := Notes(self._gateway.lenience))

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update({**rate_limit_headers(await call.look()), **notes.headers()})
            await send(message)
            if message["type"] == "http.response.body":
                call.handed()

        try:
            await self._app(scope, receive, sending)
        finally:
            call.close()

    async def _keyed(
        self, call: Call, key: str, grace: float | None, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        tenant = _tenant(call, Headers(scope=scope))
        request = fingerprint((scope["method"].encode(), scope["path"].encode(), scope["query_string"], body))

        async def make(add: Add) -> bool:
            return await self._record(call, scope, body, add)

        pieces = self._gateway.answers.read(call.account, tenant, key, request, make, grace)
        started = False

        async def pump() -> None:
            nonlocal started
            async for replayed, piece in pieces:
                if started:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    continue
                started = True
                head = self._decode_head(piece)
                message = {"type": "http.response.start", "status": head.status, "headers": head.headers}
                more = {REPLAYED_HEADER: "true"} if replayed else {}
                MutableHeaders(scope=message).update({**rate_limit_headers(await call.look()), **more})
                await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await until_gone(receive, pump())
        except CancelledRequestError:
            return  # nobody is left to tell
        except JaxserveError as error:
            if started:
                raise
            await error_response(error, scope["path"])(scope, receive, send)
        finally:
            await pieces.aclose()

    async def _record(self, call: Call, scope: Scope, body: bytes, add: Add) -> bool:
        """Let the application answer into a recording. It sees a client that stays until this task is cancelled."""
        scope["state"]["context"] = RequestContext(call, scope["state"]["exchange"])
        NOTES.set(notes := Notes(self._gateway.lenience))
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(notes.headers())
                await add(self._encode(_Head(status, list(message["headers"]))))
            elif message.get("body"):
                await add(message["body"])
                call.handed()

        try:
            await self._app(dict(scope), _with_body(body, _never), sending)
        finally:
            call.close()
        return status < 400 and not call.broken


def _tenant(call: Call, headers: Headers) -> str:
    """Whose call it is: the key's tenant, or what a client without one says."""
    tenant = call.principal.tenant
    return headers.get(TENANT_HEADER, "") if tenant is None else tenant


def _grace(headers: Headers) -> float | None:
    """Seconds that the client asks for. Raises InvalidRequestError for what is no number of them."""
    given = headers.getlist(_GRACE_HEADER)
    if not given:
        return None
    try:
        seconds = float(given[0])
    except ValueError:
        seconds = math.nan
    if len(given) > 1 or not 0.0 <= seconds < math.inf:
        raise InvalidRequestError(f"{_GRACE_HEADER} must be one number of seconds, 0 or more", param=_GRACE_HEADER)
    return seconds


def _credentials(headers: Headers) -> list[bytes]:
    """API keys that the request carries, as they were sent: they may be no text at all."""
    found = []
    for name, value in headers.raw:
        if name == b"x-api-key":
            found.append(value)
        elif name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            found.append(value[len(_BEARER) :].strip())
    return found


def _with_body(body: bytes, rest: Receive) -> Receive:
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
