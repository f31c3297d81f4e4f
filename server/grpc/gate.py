"""The gateway in front of every gRPC service: who asks, what is left, what was delivered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, NoReturn

import grpc
import grpc.aio

from jaxserve.errors import InvalidRequestError, JaxserveError, SlowReaderError
from server.context import RequestContext
from server.errors import grpc_status
from server.gateway.call import Call
from server.gateway.gateway import Gateway
from server.gateway.idempotency import fingerprint
from server.gateway.recordings import Add
from server.gateway.refusals import rate_limit_headers
from server.gateway.routes import grpc_access
from server.grpc.calls import REQUEST_ID_METADATA, Behaviour, is_request_id, wrapped
from server.grpc.jobs import TENANT_METADATA
from server.observe.exchange import Exchange
from server.requests import new_id
from server.unsupported.notes import NOTES, Notes

IDEMPOTENCY_METADATA = "idempotency-key"
REPLAYED_METADATA = "idempotency-replayed"
_BEARER = b"bearer "

Metadata = tuple[tuple[str, str | bytes], ...]
Context = grpc.aio.ServicerContext[Any, Any]


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Lets in who may come in. Methods see a context that names the request and tells clients what is left for them.

    Args:
        unread_seconds: after which a call is cancelled whose client does not take a message.
    """

    def __init__(self, gateway: Gateway, unread_seconds: float) -> None:
        self._gateway = gateway
        self._unread_seconds = unread_seconds

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The method's handler behind the gate; None for a method that is not there.

        Who may not call it is told so by a handler of streams, which waits for no message: none is read.
        """
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        metadata = tuple(handler_call_details.invocation_metadata or ())
        try:
            self._gateway.call("", _credentials(metadata), grpc_access(handler_call_details.method))
        except JaxserveError as error:
            return grpc.stream_stream_rpc_method_handler(partial(_refuse, error, Notes(self._gateway.lenience)))
        given = (handler_call_details.method, handler)
        return wrapped(handler, partial(self._one, *given), partial(self._many, *given), None)

    def _one(self, method: str, handler: Any, inner: Behaviour) -> Behaviour:
        async def alone(request: Any, context: Any) -> AsyncGenerator[Any, None]:
            yield await inner(request, context)

        many = self._many(method, handler, alone)

        async def one(request: Any, context: Context) -> bytes:
            async with aclosing(many(request, context)) as messages:
                answers: list[bytes] = [message async for message in messages]
            return answers[0]

        return one

    def _many(self, method: str, handler: Any, inner: Behaviour) -> Behaviour:
        serialize: Callable[[Any], bytes] = handler.response_serializer
        access = grpc_access(method)

        async def many(request: Any, context: Context) -> AsyncIterator[bytes]:
            named = NamedContext(context, Notes(self._gateway.lenience))
            try:
                call = self._gateway.call(named.request_id, named.credentials(), access)
                named.exchange.name_tenant(_tenant(call, named))
                # Where nobody has said who they are, no key is anybody's.
                keys = [] if access == "open" else named.values(IDEMPOTENCY_METADATA)
                if keys and handler.request_streaming:
                    raise InvalidRequestError("a stream of requests cannot have an idempotency key", param=IDEMPOTENCY_METADATA)
                if len(keys) > 1:
                    raise InvalidRequestError(f"{IDEMPOTENCY_METADATA} must be given once", param=IDEMPOTENCY_METADATA)
            except JaxserveError as error:
                await named.fail(error)
            named.call = call
            if keys:
                answer = self._keyed(call, keys[0].decode("latin-1"), method, inner, serialize, request, named)
            else:
                answer = _plain(call, inner, serialize, request, named)
            loop, give_up = asyncio.get_running_loop(), _giving_up(context, named.request_id)
            async with aclosing(answer):
                async for message in answer:
                    giving_up = loop.call_later(self._unread_seconds, give_up)
                    try:
                        yield message
                    finally:
                        giving_up.cancel()

        return many

    async def _keyed(
        self,
        call: Call,
        key: str,
        method: str,
        inner: Callable[[Any, Any], AsyncGenerator[Any, None]],
        serialize: Callable[[Any], bytes],
        request: bytes,
        context: NamedContext,
    ) -> AsyncGenerator[bytes, None]:
        tenant = _tenant(call, context)

        async def make(add: Add) -> bool:
            async with aclosing(_plain(call, inner, serialize, request, RecordedContext(context))) as messages:
                async for message in messages:
                    await add(message)
            return not call.broken

        request_print = fingerprint((method.encode(), request))
        pieces = self._gateway.answers.read(call.account, tenant, key, request_print, make)
        try:
            async with aclosing(pieces):
                async for replayed, piece in pieces:
                    context.replayed = replayed
                    yield piece
            await context.finish()
        except JaxserveError as error:
            await context.fail(error)
        except CallEndedError as ended:
            await context.abort(ended.code, ended.details, ended.metadata)


def _tenant(call: Call, context: NamedContext) -> str:
    """Whose call it is: the key's tenant, or what a client without one says."""
    tenant = call.principal.tenant
    return b"".join(context.values(TENANT_METADATA)).decode("latin-1") if tenant is None else tenant


async def _plain(
    call: Call,
    inner: Callable[[Any, Any], AsyncGenerator[Any, None]],
    serialize: Callable[[Any], bytes],
    request: Any,
    context: NamedContext,
) -> AsyncGenerator[bytes, None]:
    context.request_context = RequestContext(call, context.exchange)
    NOTES.set(context.notes)
    try:
        async with aclosing(inner(request, context)) as messages:
            async for message in messages:
                yield serialize(message)
                call.handed()
        await context.finish()
    finally:
        call.close()


def _giving_up(context: Context, request_id: str) -> Callable[[], None]:
    """What ends the call that this task answers, although the task waits for a client that does not read."""
    task = asyncio.current_task()
    assert task is not None

    def give_up() -> None:
        status = grpc_status(SlowReaderError("a message was not taken in time (unread_timeout)"), request_id)
        ending = asyncio.ensure_future(context.abort(status.code, status.details, tuple(status.trailing_metadata)))
        ending.add_done_callback(lambda done: done.cancelled() or done.exception())  # it always raises
        asyncio.get_running_loop().call_soon(task.cancel)  # after the status is on its way

    return give_up


def _values(metadata: Metadata, name: str) -> list[bytes]:
    return [value.encode() if isinstance(value, str) else value for key, value in metadata if key == name]


def _credentials(metadata: Metadata) -> list[bytes]:
    bearers = [value for value in _values(metadata, "authorization") if value[: len(_BEARER)].lower() == _BEARER]
    return [*(value[len(_BEARER) :].strip() for value in bearers), *_values(metadata, "x-api-key")]


async def _refuse(error: JaxserveError, notes: Notes, _: Any, context: Context) -> AsyncIterator[bytes]:
    named = NamedContext(context, notes)
    await named.fail(error)
    yield b""  # never: it makes a stream of this


class NamedContext:
    """A call's context, whose trailing metadata name the request and tell what is left for the tenant.

    Attributes:
        request_id: the metadata x-request-id, or a new one, which methods then find in the metadata.
    """

    def __init__(self, context: Context, notes: Notes) -> None:
        self._context = context
        self._metadata = tuple(context.invocation_metadata() or ())
        self._trailing: Metadata = ()
        self.exchange: Exchange = context.exchange  # type: ignore[attr-defined]  # of Observed's
        self.request_context = RequestContext()
        self.call: Call | None = None
        self.replayed = False
        self.notes = notes
        given = [value for value in self.values(REQUEST_ID_METADATA) if is_request_id(value.decode("latin-1"))]
        self.request_id = given[0].decode() if given else new_id("req")
        if not given:
            others = tuple((name, value) for name, value in self._metadata if name != REQUEST_ID_METADATA)
            self._metadata = (*others, (REQUEST_ID_METADATA, self.request_id))
        self.exchange.request_id = self.request_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def invocation_metadata(self) -> Any:
        return self._metadata

    def values(self, name: str) -> list[bytes]:
        return _values(self._metadata, name)

    def credentials(self) -> list[bytes]:
        return _credentials(self._metadata)

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Metadata at the end of the call, besides those of the gateway."""
        self._trailing = tuple(metadata)

    async def finish(self) -> None:
        self._context.set_trailing_metadata(await self._all(self._trailing))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        await self._context.abort(code, details, await self._all(trailing_metadata))
        raise AssertionError("abort raises")

    async def fail(self, error: JaxserveError) -> NoReturn:
        status = grpc_status(error, self.request_id)
        await self.abort(status.code, status.details, tuple(status.trailing_metadata))

    async def _all(self, metadata: Metadata) -> Metadata:
        levels = await self.call.look() if self.call is not None else None
        own = {REQUEST_ID_METADATA: self.request_id, **rate_limit_headers(levels), **self.notes.headers()}
        if self.replayed:
            own[REPLAYED_METADATA] = "true"
        return (*metadata, *((name, value) for name, value in own.items() if name not in dict(metadata)))


class CallEndedError(Exception):
    """A recorded call was ended with a status."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Metadata) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.metadata = tuple((name, value) for name, value in metadata if name != REQUEST_ID_METADATA)


class RecordedContext(NamedContext):
    """The context of a call whose answer is recorded: nothing that is done to it reaches the client that came first."""

    def __init__(self, first: NamedContext) -> None:
        super().__init__(first, first.notes)  # type: ignore[arg-type]  # it is one, by delegation
        self.request_id = first.request_id

    async def finish(self) -> None:
        """The call ends well."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        raise CallEndedError(code, details, trailing_metadata)
