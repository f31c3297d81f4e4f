"""jaxserve.v1.Inference over an engine."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from jaxserve.engine.client import EngineClient
from jaxserve.errors import InternalError, InvalidRequestError, JaxserveError
from server.errors import grpc_status
from server.grpc.messages import TENANT_METADATA, event_of, job_of, model_info_of
from server.proto import inference_pb2 as pb
from server.requests import admit, check_model
from server.streams import run

_LOG = logging.getLogger(__name__)

SERVICE_NAME: str = pb.DESCRIPTOR.services_by_name["Inference"].full_name

Request = TypeVar("Request", bound=Message)


class Inference:
    """The service's methods. They take undecoded requests, so that a malformed one gets INVALID_ARGUMENT too."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def generate(
        self, payload: bytes, context: grpc.aio.ServicerContext[bytes, pb.GenerateEvent]
    ) -> AsyncIterator[pb.GenerateEvent]:
        """Run one request. Cancelling the call cancels this task, which closes the events and so aborts the request."""
        try:
            request = _decoded(pb.GenerateRequest, payload)
            admit(self._client, request.model)
            job = await job_of(self._client, request, _tenants(context))
            async with aclosing(run(self._client, job)) as events:
                async for _, event in events:
                    yield event_of(event, job.request_id)
        except JaxserveError as error:
            await _fail(context, error)
        except Exception:
            _LOG.exception("a call to Generate failed")
            await _fail(context, InternalError("the server failed to answer this request"))

    async def get_model_info(self, payload: bytes, context: grpc.aio.ServicerContext[bytes, pb.ModelInfo]) -> pb.ModelInfo:
        """Describe the served model."""
        try:
            check_model(self._client, _decoded(pb.GetModelInfoRequest, payload).model)
            return model_info_of(self._client.model)
        except JaxserveError as error:
            await _fail(context, error)

    def handler(self) -> grpc.GenericRpcHandler[bytes, Message]:
        """The service as a grpc.aio server takes it."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Generate": grpc.unary_stream_rpc_method_handler(
                    self.generate, response_serializer=pb.GenerateEvent.SerializeToString
                ),
                "GetModelInfo": grpc.unary_unary_rpc_method_handler(
                    self.get_model_info, response_serializer=pb.ModelInfo.SerializeToString
                ),
            },
        )


def _tenants(context: grpc.aio.ServicerContext[Any, Any]) -> list[str]:
    """Every value of the metadata that names the tenant."""
    return [str(value) for key, value in context.invocation_metadata() or () if key == TENANT_METADATA]


def _decoded(kind: type[Request], payload: bytes) -> Request:
    try:
        return kind.FromString(payload)
    except DecodeError as error:
        raise InvalidRequestError(f"the request is not a valid {kind.DESCRIPTOR.full_name}") from error


async def _fail(context: grpc.aio.ServicerContext[Any, Any], error: JaxserveError) -> NoReturn:
    status = grpc_status(error)
    await context.abort(status.code, status.details, status.trailing_metadata)
