"""Watches every gRPC call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from grpc import aio

from server.grpc.calls import wrapped
from server.observe.exchange import Exchange
from server.observe.observatory import Observatory

_TRACEPARENT = "traceparent"
_STATUS_NAMES = {status.value[0]: status.name for status in grpc.StatusCode}


class Observed(aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Watches every call."""

    def __init__(self, observatory: Observatory) -> None:
        self._observatory = observatory

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The method's handler, watched; None for a method that is not there."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method: str = handler_call_details.method
        return wrapped(handler, partial(self._one, method), partial(self._many, method), handler.response_serializer)

    def _one(self, method: str, inner: Any) -> Any:
        async def one(request: Any, context: Any) -> Any:
            exchange = _exchange(method, context)
            with self._observatory.watching(exchange):
                try:
                    reply = await inner(request, WatchedContext(context, exchange))
                except BaseException as error:
                    exchange.status = _failed(context, error)
                    raise
                exchange.status = _ended(context)
                return reply

        return one

    def _many(self, method: str, inner: Any) -> Any:
        async def many(request: Any, context: Any) -> AsyncIterator[Any]:
            exchange = _exchange(method, context)
            with self._observatory.watching(exchange), self._observatory.servers.stream("grpc"):
                try:
                    async for message in inner(request, WatchedContext(context, exchange)):
                        yield message
                except BaseException as error:
                    exchange.status = _failed(context, error)
                    raise
                exchange.status = _ended(context)

        return many


class WatchedContext:
    """A call's context, and what is told of the call."""

    def __init__(self, context: Any, exchange: Exchange) -> None:
        self._context = context
        self.exchange = exchange

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _exchange(method: str, context: Any) -> Exchange:
    metadata = dict(context.invocation_metadata() or ())
    return Exchange(
        surface="grpc",
        method=method,
        route=method,
        request_id="",  # the gate says
        traceparent=str(metadata.get(_TRACEPARENT, "")),
    )


def _ended(context: Any) -> str:
    """The status that a method set; OK if it set none."""
    return _STATUS_NAMES.get(_number(context), "UNKNOWN")


def _failed(context: Any, error: BaseException) -> str:
    """The status of a call that was ended by an exception, such as that of `abort`."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return grpc.StatusCode.CANCELLED.name
    number = _number(context)
    return _STATUS_NAMES.get(number, "UNKNOWN") if number else grpc.StatusCode.UNKNOWN.name


def _number(context: Any) -> int:
    """The status as a number: grpc.aio gives what it was given, a StatusCode or a number."""
    code = context.code()
    return int(code.value[0]) if isinstance(code, grpc.StatusCode) else int(code or 0)
