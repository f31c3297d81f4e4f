"""jaxserve.v1.Inference over an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

import grpc
from google.protobuf.message import Message

from jaxserve.engine.client import EngineClient
from jaxserve.engine.events import Started
from jaxserve.errors import InvalidRequestError
from jaxserve.proto import inference_pb2 as pb
from server.grpc.calls import GrpcCall, service, streaming, unary
from server.grpc.jobs import events_of
from server.grpc.messages import chat_prompt, event_of, job_of, model_info_of, tokens_of
from server.grpc.pooling import pool
from server.requests import admit, served
from server.streams import abort
from server.tokenizing import counted, decode

SERVICE = pb.DESCRIPTOR.services_by_name["Inference"]


class Inference:
    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def generate(self, request: pb.GenerateRequest, call: GrpcCall) -> AsyncGenerator[pb.GenerateEvent, None]:
        """Run one request. Cancelling the call closes its events and so aborts the request."""
        client = admit(self._client, request.model, call.context)
        job = await job_of(client, request, call)
        call.request_id = job.request_id
        async with aclosing(events_of(client, job, call.context)) as events:
            async for _, event in events:
                made = partial(event_of, event, job.request_id, request.output)
                long = isinstance(event, Started) and event.prompt_logprobs is not None
                yield await client.run_long(made) if long else made()

    async def pool(self, request: pb.PoolRequest, call: GrpcCall) -> pb.PoolResponse:
        """A vector of each prompt."""
        return await pool(admit(self._client, request.model, call.context), request, call)

    async def tokenize(self, request: pb.TokenizeRequest, call: GrpcCall) -> pb.TokenizeResponse:
        """Token ids of a prompt, as `generate` would take it."""
        client = admit(self._client, request.model, call.context)
        tokens = await counted(_tokens(client, request), call.context)
        tokenizer = client.tokenizer
        return pb.TokenizeResponse(
            token_ids=tokens,
            token_bytes=[tokenizer.token_bytes(token) for token in tokens] if request.return_token_bytes else (),
            max_model_len=client.model.max_model_len,
        )

    async def detokenize(self, request: pb.DetokenizeRequest, call: GrpcCall) -> pb.DetokenizeResponse:
        client = admit(self._client, request.model, call.context)
        skips = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        text = await counted(decode(client, request.token_ids, "token_ids", skip_special_tokens=skips), call.context)
        return pb.DetokenizeResponse(text=text)

    async def abort(self, request: pb.AbortRequest, call: GrpcCall) -> pb.AbortResponse:
        if not request.request_id:
            raise InvalidRequestError("request_id is required", param="request_id")
        return pb.AbortResponse(aborted=await abort(self._client, request.request_id, call.context))

    async def get_model_info(self, request: pb.GetModelInfoRequest, call: GrpcCall) -> pb.ModelInfo:
        return model_info_of(served(self._client, request.model, call.context).model)

    def handler(self) -> grpc.GenericRpcHandler[bytes, Message]:
        return service(
            SERVICE,
            {
                "Generate": streaming(pb.GenerateRequest, self.generate),
                "Pool": unary(pb.PoolRequest, self.pool),
                "Tokenize": unary(pb.TokenizeRequest, self.tokenize),
                "Detokenize": unary(pb.DetokenizeRequest, self.detokenize),
                "Abort": unary(pb.AbortRequest, self.abort),
                "GetModelInfo": unary(pb.GetModelInfoRequest, self.get_model_info),
            },
        )


async def _tokens(client: EngineClient, request: pb.TokenizeRequest) -> list[int]:
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise InvalidRequestError("prompt is required: one of text and chat", param="prompt")
    if kind == "text":
        special = request.add_special_tokens if request.HasField("add_special_tokens") else True
        return await client.encode(request.text, add_special_tokens=special)
    if request.HasField("add_special_tokens"):
        raise InvalidRequestError("add_special_tokens goes with text", param="add_special_tokens")
    return await tokens_of(client, await chat_prompt(client, request.chat))
