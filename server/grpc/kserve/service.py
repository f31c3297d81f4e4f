"""inference.GRPCInferenceService over an engine."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from importlib.metadata import version

import grpc
from google.protobuf.message import Message

from jaxserve.engine.client import EngineClient
from jaxserve.errors import InternalError, InvalidRequestError, JaxserveError
from server.grpc.calls import Call, conversing, decoded, service, unary
from server.grpc.health import accepts
from server.grpc.jobs import events_of
from server.grpc.kserve.replies import FINAL, answers
from server.grpc.kserve.requests import INPUTS, OUTPUTS, VERSION, check_version, inference_of
from server.grpc.kserve.stream import side_by_side
from server.proto import kserve_pb2 as pb
from server.requests import check_model

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]

_LOG = logging.getLogger(__name__)


class Kserve:
    """The service's methods. `ready` raises a JaxserveError unless requests are accepted and the engine's loop turns."""

    def __init__(self, client: EngineClient, ready: Callable[[], None]) -> None:
        self._client = client
        self._ready = ready

    async def server_live(self, request: pb.ServerLiveRequest, call: Call) -> pb.ServerLiveResponse:
        """Tell that the process answers."""
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, request: pb.ServerReadyRequest, call: Call) -> pb.ServerReadyResponse:
        """Tell whether requests are accepted."""
        return pb.ServerReadyResponse(ready=accepts(self._ready))

    async def model_ready(self, request: pb.ModelReadyRequest, call: Call) -> pb.ModelReadyResponse:
        """Tell whether requests for a model are accepted; for one that is not here they are not."""
        served = request.name in self._client.model.names and request.version in ("", VERSION)
        return pb.ModelReadyResponse(ready=served and accepts(self._ready))

    async def server_metadata(self, request: pb.ServerMetadataRequest, call: Call) -> pb.ServerMetadataResponse:
        """Describe the server."""
        return pb.ServerMetadataResponse(name="jaxserve", version=version("jaxserve"))

    async def model_metadata(self, request: pb.ModelMetadataRequest, call: Call) -> pb.ModelMetadataResponse:
        """Describe the served model's tensors."""
        check_model(self._client, request.name)
        check_version(request.version)
        reply = pb.ModelMetadataResponse(name=self._client.model.name, versions=[VERSION], platform="jaxserve")
        for name, datatype in INPUTS.items():
            reply.inputs.add(name=name, datatype=datatype, shape=[1])
        for name, datatype in OUTPUTS.items():
            reply.outputs.add(name=name, datatype=datatype, shape=[-1])
        return reply

    async def model_infer(self, request: pb.ModelInferRequest, call: Call) -> pb.ModelInferResponse:
        """Answer one request at once with all of its output."""
        inference = inference_of(self._client, request, call)
        if inference.stream:
            raise InvalidRequestError("stream must be false: ModelStreamInfer answers piece by piece", param="stream")
        call.request_id = inference.job.request_id
        events = events_of(self._client, inference.job)
        (reply,) = [reply async for reply in answers(inference, self._client.model.name, events)]
        return reply

    async def model_stream_infer(
        self, payloads: AsyncIterator[bytes], call: Call
    ) -> AsyncGenerator[pb.ModelStreamInferResponse, None]:
        """Answer requests side by side as their output comes. One that fails gets an error and the others go on."""
        async with aclosing(side_by_side(payloads, lambda payload: self._answers(payload, call))) as replies:
            async for reply in replies:
                yield reply

    def handler(self) -> grpc.GenericRpcHandler[bytes, Message]:
        """The service as a grpc.aio server takes it."""
        return service(
            SERVICE,
            {
                "ServerLive": unary(pb.ServerLiveRequest, self.server_live),
                "ServerReady": unary(pb.ServerReadyRequest, self.server_ready),
                "ModelReady": unary(pb.ModelReadyRequest, self.model_ready),
                "ServerMetadata": unary(pb.ServerMetadataRequest, self.server_metadata),
                "ModelMetadata": unary(pb.ModelMetadataRequest, self.model_metadata),
                "ModelInfer": unary(pb.ModelInferRequest, self.model_infer),
                "ModelStreamInfer": conversing(self.model_stream_infer),
            },
        )

    async def _answers(self, payload: bytes, call: Call) -> AsyncGenerator[pb.ModelStreamInferResponse, None]:
        """The answers to one request of a stream, of which the last may be its failure."""
        name = ""
        try:
            request = decoded(pb.ModelInferRequest, payload)
            name = request.id
            inference = inference_of(self._client, request, call)
            events = events_of(self._client, inference.job)
            async with aclosing(answers(inference, self._client.model.name, events)) as found:
                async for answer in found:
                    yield pb.ModelStreamInferResponse(infer_response=answer)
        except JaxserveError as error:
            yield _failure(name, error)
        except Exception:
            _LOG.exception("a request of the stream %s failed", call.request_id)
            yield _failure(name, InternalError("the server failed to answer this request"))


def _failure(name: str, error: JaxserveError) -> pb.ModelStreamInferResponse:
    """The end of one request of a stream."""
    reply = pb.ModelStreamInferResponse(error_message=error.message, infer_response=pb.ModelInferResponse(id=name))
    reply.infer_response.parameters["error_code"].string_param = error.code.value
    reply.infer_response.parameters[FINAL].bool_param = True
    return reply
