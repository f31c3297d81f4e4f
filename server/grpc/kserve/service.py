"""inference.GRPCInferenceService over an engine."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial

import grpc
from google.protobuf.message import Message

from jaxserve.engine.client import EngineClient
from jaxserve.errors import InternalError, InvalidRequestError, JaxserveError
from jaxserve.proto import kserve_pb2 as pb
from jaxserve.untrusted import refused
from server.context import RequestContext
from server.grpc.calls import GrpcCall, conversing, decoded, service, unary
from server.grpc.health import accepts
from server.grpc.jobs import DEADLINE_METADATA, TENANT_METADATA, events_of, options_of
from server.grpc.kserve.stream import side_by_side
from server.kserve import metadata
from server.kserve.pooling import infer_vectors, pools
from server.kserve.replies import FINAL, answers
from server.kserve.requests import VERSION, Carrier, inference_of
from server.models import clients_of
from server.requests import admit, new_id

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]

_LOG = logging.getLogger(__name__)


class Kserve:
    """The service's methods.

    Args:
        ready: raises a JaxserveError unless requests are accepted and the engine's loop turns.
        metrics: the Prometheus text of all processes.
    """

    def __init__(self, client: EngineClient, ready: Callable[[], None], metrics: Callable[[], Awaitable[bytes]]) -> None:
        self._client = client
        self._ready = ready
        self._metrics = metrics

    async def server_live(self, request: pb.ServerLiveRequest, call: GrpcCall) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, request: pb.ServerReadyRequest, call: GrpcCall) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=accepts(self._ready))

    async def model_ready(self, request: pb.ModelReadyRequest, call: GrpcCall) -> pb.ModelReadyResponse:
        """Tell whether requests for a model are accepted; for one that is not here they are not."""
        named = [one for one in clients_of(self._client) if request.name in one.model.names]
        served = bool(named) and request.version in ("", VERSION)
        return pb.ModelReadyResponse(ready=served and accepts(named[0].check_health) and accepts(self._ready))

    async def server_metadata(self, request: pb.ServerMetadataRequest, call: GrpcCall) -> pb.ServerMetadataResponse:
        return metadata.server_metadata()

    async def model_metadata(self, request: pb.ModelMetadataRequest, call: GrpcCall) -> pb.ModelMetadataResponse:
        return metadata.model_metadata(self._client, request.name, request.version, call.context)

    async def model_config(self, request: pb.ModelConfigRequest, call: GrpcCall) -> pb.ModelConfigResponse:
        return pb.ModelConfigResponse(config=metadata.model_config(self._client, request.name, request.version, call.context))

    async def model_statistics(self, request: pb.ModelStatisticsRequest, call: GrpcCall) -> pb.ModelStatisticsResponse:
        """Tell what requests took since the start, in all processes."""
        return metadata.model_statistics(self._client, request.name, request.version, await self._metrics(), call.context)

    async def repository_index(self, request: pb.RepositoryIndexRequest, call: GrpcCall) -> pb.RepositoryIndexResponse:
        if request.repository_name:
            raise InvalidRequestError("repository_name must be empty: there is one repository", param="repository_name")
        return metadata.repository_index(self._client, self._ready, call.context, only_ready=request.ready)

    async def model_infer(self, request: pb.ModelInferRequest, call: GrpcCall) -> pb.ModelInferResponse:
        client = admit(self._client, request.model_name, call.context)
        if pools(client, request):
            call.request_id = new_id("infer")
            return await infer_vectors(client, request, _carrier(call, call.context), call.request_id)
        inference = inference_of(self._client, request, _carrier(call, call.context))
        if inference.stream:
            raise InvalidRequestError("stream must be false: ModelStreamInfer answers piece by piece", param="stream")
        call.request_id = inference.job.request_id
        events = events_of(inference.client, inference.job, call.context)
        (reply,) = [reply async for reply in answers(inference, events)]
        return reply

    async def model_stream_infer(
        self, payloads: AsyncIterator[bytes], call: GrpcCall
    ) -> AsyncGenerator[pb.ModelStreamInferResponse, None]:
        """Answer requests side by side as their output comes. One that fails gets an error and the others go on."""

        def answer(payload: bytes, context: RequestContext) -> AsyncGenerator[pb.ModelStreamInferResponse, None]:
            return self._answers(payload, call, context)

        async with aclosing(side_by_side(payloads, answer, call.context)) as replies:
            async for reply in replies:
                yield reply

    def handler(self) -> grpc.GenericRpcHandler[bytes, Message]:
        return service(
            SERVICE,
            {
                "ServerLive": unary(pb.ServerLiveRequest, self.server_live),
                "ServerReady": unary(pb.ServerReadyRequest, self.server_ready),
                "ModelReady": unary(pb.ModelReadyRequest, self.model_ready),
                "ServerMetadata": unary(pb.ServerMetadataRequest, self.server_metadata),
                "ModelMetadata": unary(pb.ModelMetadataRequest, self.model_metadata),
                "ModelConfig": unary(pb.ModelConfigRequest, self.model_config),
                "ModelStatistics": unary(pb.ModelStatisticsRequest, self.model_statistics),
                "RepositoryIndex": unary(pb.RepositoryIndexRequest, self.repository_index),
                "ModelInfer": unary(pb.ModelInferRequest, self.model_infer),
                "ModelStreamInfer": conversing(self.model_stream_infer),
            },
        )

    async def _answers(
        self, payload: bytes, call: GrpcCall, context: RequestContext
    ) -> AsyncGenerator[pb.ModelStreamInferResponse, None]:
        """The answers to one request of a stream, of which the last may be its failure."""
        name = ""
        try:
            with refused(None):
                request = decoded(pb.ModelInferRequest, payload)
                name = request.id
                client = admit(self._client, request.model_name, context)
                if pools(client, request):
                    vectors = await infer_vectors(client, request, _carrier(call, context), new_id("infer"))
                    yield pb.ModelStreamInferResponse(infer_response=vectors)
                    return
                inference = inference_of(self._client, request, _carrier(call, context))
                events = events_of(inference.client, inference.job, context)
                async with aclosing(answers(inference, events)) as found:
                    async for answer in found:
                        yield pb.ModelStreamInferResponse(infer_response=answer)
        except JaxserveError as error:
            yield _failure(name, error)
        except Exception:
            _LOG.exception("a request of the stream %s failed", call.request_id)
            yield _failure(name, InternalError("the server failed to answer this request"))


def _carrier(call: GrpcCall, context: RequestContext) -> Carrier:
    return Carrier(context, partial(options_of, call), TENANT_METADATA, DEADLINE_METADATA)


def _failure(name: str, error: JaxserveError) -> pb.ModelStreamInferResponse:
    reply = pb.ModelStreamInferResponse(error_message=error.message, infer_response=pb.ModelInferResponse(id=name))
    reply.infer_response.parameters["error_code"].string_param = error.code.value
    reply.infer_response.parameters[FINAL].bool_param = True
    return reply
