"""The gateway in front of the HTTP application: who asks, how long the body is, what is left, what was delivered."""

from __future__ import annotations

import math
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxserve.errors import CancelledRequestError, InvalidRequestError, JaxserveError
from server.context import RequestContext
from server.gateway.call import Call
from server.gateway.gateway import Gateway
from server.gateway.idempotency import fingerprint
from server.gateway.recordings import Add
from server.gateway.refusals import rate_limit_headers
from server.gateway.routes import has_weights, http_access, is_upload, takes_body
from server.http.disconnect import until_gone
from server.http.failures import error_response, methods_at
from server.http.headers import tenant_of
from server.http.held import Bodies, check_without_body
from server.http.recorded import Recorder, decode_head, with_body
from server.http.streams.gate import StreamGate, stream_id_of
from server.unsupported.notes import NOTES, Notes

REPLAYED_HEADER = "Idempotency-Replayed"
_KEY_HEADER = "Idempotency-Key"
_GRACE_HEADER = "Idempotency-Grace"
_BEARER = b"bearer "


class Gate:
    """Lets in who may come in. The body of a request is read before the application sees it, but after it is known whose it
    is, and never beyond the limits; only that of an upload is left to the application.

    Args:
        silence: seconds without an event after which a stream is sent a comment.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway, bodies: Bodies, routes: Sequence[BaseRoute], silence: float) -> None:
        self._app = app
        self._gateway = gateway
        self._bodies = bodies
        self._routes = [route for route in routes if isinstance(route, Route)]
        self._recorder = Recorder(app, gateway.lenience)
        self._streams = StreamGate(self._recorder, gateway.streams, silence)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        access, upload = http_access(path), is_upload(method, path)
        try:
            call = self._gateway.call(scope["state"]["request_id"], _credentials(headers), access)
            scope["state"]["exchange"].name_tenant(tenant_of(call, headers))
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
                stream_id = stream_id_of(scope, headers, body, keyed=bool(keys))
            except JaxserveError as error:
                await error_response(error, path)(scope, receive, send)
                return
            if stream_id is not None:
                await self._streams.answer(call, stream_id, body, scope, receive, send)
            elif keys and method == "POST":
                await self._keyed(call, keys[0], grace, body, scope, receive, send)
            else:
                await self._plain(call, scope, with_body(body, receive), send)

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
        tenant = tenant_of(call, Headers(scope=scope))
        request = fingerprint((scope["method"].encode(), scope["path"].encode(), scope["query_string"], body))

        async def make(add: Add) -> bool:
            return await self._recorder.record(call, scope, body, add) < 400 and not call.broken

        pieces = self._gateway.answers.read(call.account, tenant, key, request, make, grace)
        started = False

        async def pump() -> None:
            nonlocal started
            async for replayed, piece in pieces:
                if started:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    continue
                started = True
                head = decode_head(piece)
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
