"""The gateway in front of the HTTP application: who asks, how long the body is, what is left, what was delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxserve.errors import CancelledRequestError, InvalidRequestError, JaxserveError, RequestTooLargeError
from server.gateway.call import CURRENT, Call
from server.gateway.gateway import Gateway
from server.gateway.idempotency import Add, fingerprint
from server.gateway.refusals import rate_limit_headers
from server.gateway.routes import http_access, is_upload
from server.http.disconnect import until_gone
from server.http.failures import error_response
from server.http.headers import TENANT_HEADER
from server.unsupported.notes import NOTES, Notes

REPLAYED_HEADER = "Idempotency-Replayed"
_KEY_HEADER = "Idempotency-Key"
_BEARER = b"bearer "


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """Status and headers of an answer, as a piece of its recording."""

    status: int
    headers: list[tuple[bytes, bytes]]


class Gate:
    """Lets in who may come in. The body of a request is read before the application sees it, and never beyond the limit; only
    that of an upload is left to the application.

    Args:
        app: what answers.
        gateway: who may come in.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode_head = msgspec.msgpack.Decoder(_Head).decode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one exchange."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        upload = is_upload(scope["method"], scope["path"])
        try:
            access = http_access(scope["path"])
            call = self._gateway.call(scope["state"]["request_id"], _credentials(headers), access)
            keys = headers.getlist(_KEY_HEADER)
            if upload and keys:
                raise InvalidRequestError(f"{_KEY_HEADER} is not taken with an upload", param=_KEY_HEADER)
            body = b"" if upload else await _body(receive, headers, self._gateway.max_body_bytes)
            if len(keys) > 1:
                raise InvalidRequestError(f"{_KEY_HEADER} must be given once, got {len(keys)}", param=_KEY_HEADER)
        except JaxserveError as error:
            await error_response(error, scope["path"])(scope, receive, send)
            return
        if keys and scope["method"] == "POST" and access != "open":  # there nobody has said who they are
            await self._keyed(call, keys[0], body, scope, receive, send)
        else:
            await self._plain(call, scope, receive if upload else _with_body(body, receive), send)

    async def _plain(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, counting what is delivered."""
        CURRENT.set(call)
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

    async def _keyed(self, call: Call, key: str, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer under an idempotency key."""
        tenant = call.principal.tenant
        if tenant is None:
            tenant = Headers(scope=scope).get(TENANT_HEADER, "")
        request = fingerprint((scope["method"].encode(), scope["path"].encode(), scope["query_string"], body))

        async def make(add: Add) -> bool:
            return await self._record(call, scope, body, add)

        pieces = self._gateway.answers.read(call.account, tenant, key, request, make)
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
        CURRENT.set(call)
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


def _credentials(headers: Headers) -> list[bytes]:
    """API keys that the request carries, as they were sent: they may be no text at all."""
    found = []
    for name, value in headers.raw:
        if name == b"x-api-key":
            found.append(value)
        elif name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            found.append(value[len(_BEARER) :].strip())
    return found


async def _body(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
    """The whole body. Raises RequestTooLargeError as soon as it is known to be too long."""
    announced = headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CancelledRequestError("the client went away")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"the body is longer than the {limit} bytes that this server reads (--max-body-bytes)")


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
