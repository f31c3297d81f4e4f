"""What every gRPC call gets: a request id, and a typed status whatever it sent and whatever breaks."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from jaxserve.errors import InternalError, InvalidRequestError, JaxserveError
from jaxserve.untrusted import refused
from server.context import RequestContext
from server.errors import grpc_status
from server.requests import new_id

_LOG = logging.getLogger(__name__)

REQUEST_ID_METADATA = "x-request-id"
_LONGEST_ID = 256
_OWN_PACKAGE = "jaxserve.v1"  # others' clients may know more than this server, as theirs does

Request = TypeVar("Request", bound=Message)
Behaviour = Callable[[Any, Any], Any]
Wrap = Callable[[Behaviour], Behaviour]


class GrpcCall:
    """One call.

    Attributes:
        request_id: the metadata x-request-id, or a new one; it comes back in the trailing metadata. A method that runs a
            request under another name sets that.
    """

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context
        (given, *_) = [*self.metadata(REQUEST_ID_METADATA), ""]
        self.request_id = given if is_request_id(given) else new_id("req")

    @property
    def context(self) -> RequestContext:
        context: RequestContext = self._context.request_context  # type: ignore[attr-defined]  # of the gate's
        return context

    def metadata(self, name: str) -> list[str]:
        """Every value of a metadata name, in order; bytes that are no text stand as escapes."""
        return [_text(value) for key, value in self._context.invocation_metadata() or () if key == name]

    def remaining(self) -> float | None:
        """Seconds to the call's deadline, 0 if it has passed; None if it has none."""
        seconds: float | None = self._context.time_remaining()
        return seconds

    async def end(self, code: grpc.StatusCode, message: str) -> NoReturn:
        """End the call with a status that the table of errors does not have."""
        await self._context.abort(code, message, ((REQUEST_ID_METADATA, self.request_id),))

    @asynccontextmanager
    async def failures(self) -> AsyncIterator[None]:
        """Ends the call with the status of what is raised inside."""
        try:
            with refused(None):
                yield
        except JaxserveError as error:
            await self._fail(error)
        except Exception:
            _LOG.exception("the call %s failed", self.request_id)
            await self._fail(InternalError("the server failed to answer this request"))
        self._context.set_trailing_metadata(((REQUEST_ID_METADATA, self.request_id),))

    async def _fail(self, error: JaxserveError) -> NoReturn:
        status = grpc_status(error, self.request_id)
        metadata = (*status.trailing_metadata, (REQUEST_ID_METADATA, self.request_id))
        await self._context.abort(status.code, status.details, metadata)


def check_request_id(name: str) -> None:
    """Raise InvalidRequestError for a request's name that cannot be one; none is one that the server makes."""
    if name and not is_request_id(name):
        raise InvalidRequestError(f"request_id must be at most {_LONGEST_ID} printable ASCII characters", param="request_id")


def is_request_id(name: str) -> bool:
    """Whether a client may call a request so: it goes into headers and logs."""
    return 0 < len(name) <= _LONGEST_ID and name.isascii() and name.isprintable()


def decoded(kind: type[Request], payload: bytes) -> Request:
    """The message; one of our own packages holds no field that is unknown here. Raises InvalidRequestError."""
    try:
        message = kind.FromString(payload)
    except DecodeError as error:
        raise InvalidRequestError(f"the request is not a valid {kind.DESCRIPTOR.full_name}") from error
    if kind.DESCRIPTOR.file.package == _OWN_PACKAGE:
        refuse_unknown(message)
    return message


def unary(
    kind: type[Request], answer: Callable[[Request, GrpcCall], Awaitable[Message]]
) -> grpc.RpcMethodHandler[bytes, Message]:
    """A method of one request and one reply. It decodes the request itself: a malformed one gets INVALID_ARGUMENT."""

    async def method(payload: bytes, context: grpc.aio.ServicerContext[bytes, Message]) -> Message:
        call = GrpcCall(context)
        async with call.failures():
            return await answer(decoded(kind, payload), call)

    return grpc.unary_unary_rpc_method_handler(method, response_serializer=_serialized)  # type: ignore[arg-type]  # an async one


def streaming(
    kind: type[Request], answer: Callable[[Request, GrpcCall], AsyncGenerator[Message, None]]
) -> grpc.RpcMethodHandler[bytes, Message]:
    """A method of one request and many replies. Cancelling the call cancels the task that runs `answer`."""

    async def method(payload: bytes, context: grpc.aio.ServicerContext[bytes, Message]) -> AsyncIterator[Message]:
        call = GrpcCall(context)
        async with call.failures(), aclosing(answer(decoded(kind, payload), call)) as messages:
            async for message in messages:
                yield message

    return grpc.unary_stream_rpc_method_handler(method, response_serializer=_serialized)  # type: ignore[arg-type]  # an async one


def conversing(
    answer: Callable[[AsyncIterator[bytes], GrpcCall], AsyncGenerator[Message, None]],
) -> grpc.RpcMethodHandler[bytes, Message]:
    """A method of many requests, which it decodes itself, and many replies."""

    async def method(payloads: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, Message]) -> AsyncIterator[Message]:
        call = GrpcCall(context)
        async with call.failures(), aclosing(answer(payloads, call)) as messages:
            async for message in messages:
                yield message

    return grpc.stream_stream_rpc_method_handler(method, response_serializer=_serialized)  # type: ignore[arg-type]  # an async one


def service(
    descriptor: ServiceDescriptor, methods: dict[str, grpc.RpcMethodHandler[bytes, Message]]
) -> grpc.GenericRpcHandler[bytes, Message]:
    """A service as a grpc.aio server takes it. Methods that are left out answer UNIMPLEMENTED."""
    return grpc.method_handlers_generic_handler(descriptor.full_name, methods)


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("ascii", "backslashreplace")


def refuse_unknown(message: Message, path: str = "") -> None:
    """Raise InvalidRequestError if the message, or a part of it that is ours, holds a field of a later version.

    protobuf drops such fields in silence, but here they may ask for another output than the client would get.
    """
    for field in UnknownFieldSet(message):  # type: ignore[attr-defined]  # missing in the stubs
        name = f"{path}{field.field_number}"
        what = f"{name} of {message.DESCRIPTOR.full_name} is not supported by this server yet"
        raise InvalidRequestError(f"{what}: leave it out, or make the client from this server's jaxserve.v1", param=name)
    for descriptor, value in message.ListFields():
        kind = descriptor.message_type
        if kind is None or kind.file.package != message.DESCRIPTOR.file.package or kind.GetOptions().map_entry:
            continue
        for one in [value] if isinstance(value, Message) else value:
            refuse_unknown(one, f"{path}{descriptor.name}.")


def wrapped(handler: Any, one: Wrap, many: Wrap, response_serializer: Callable[[Any], bytes] | None) -> Any:
    """A handler of the same kind: a request and an answer, a request and a stream, or two streams.

    Args:
        handler: as `grpc.HandlerCallDetails` leads to; a stream with one answer is no kind of ours.
        one: what a behaviour that returns its answer becomes.
        many: what a behaviour that yields its answers becomes.
        response_serializer: of the new handler; None if its behaviour gives bytes.
    """
    given = {"request_deserializer": handler.request_deserializer, "response_serializer": response_serializer}
    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(one(handler.unary_unary), **given)
    if handler.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(many(handler.unary_stream), **given)
    return grpc.stream_stream_rpc_method_handler(many(handler.stream_stream), **given)
