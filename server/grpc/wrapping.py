"""A gRPC method's handler with something around its behaviour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

Behaviour = Callable[[Any, Any], Any]
Wrap = Callable[[Behaviour], Behaviour]


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
