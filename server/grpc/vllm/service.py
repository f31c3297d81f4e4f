"""vllm.grpc.engine.VllmEngine over an engine."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import grpc
from google.protobuf.message import Message

from jaxserve.engine.client import EngineClient
from jaxserve.errors import InternalError, InvalidRequestError, JaxserveError
from jaxserve.proto import smg_common_pb2 as common
from jaxserve.proto import vllm_engine_pb2 as pb
from jaxserve.versions import version_of
from server.grpc.calls import GrpcCall, service, streaming, unary
from server.grpc.health import accepts
from server.grpc.jobs import events_of
from server.grpc.vllm.replies import responses
from server.grpc.vllm.requests import job_of
from server.grpc.vllm.tokenizer_archive import tokenizer_archive
from server.requests import admit
from server.streams import abort

SERVICE = pb.DESCRIPTOR.services_by_name["VllmEngine"]

_CHUNK_BYTES = 64 * 1024


class VllmEngine:
    """The service's methods. `ready` raises a JaxserveError unless requests are accepted and the engine's loop turns."""

    def __init__(self, client: EngineClient, ready: Callable[[], None]) -> None:
        self._client = client
        self._ready = ready
        self._started = time.monotonic()

    async def generate(self, request: pb.GenerateRequest, call: GrpcCall) -> AsyncGenerator[pb.GenerateResponse, None]:
        admit(self._client, None, call.context)
        job = await job_of(self._client, request, call)
        call.request_id = job.request_id
        events = events_of(self._client, job, call.context)
        async with aclosing(responses(self._client, events, job.params.n, stream=request.stream)) as messages:
            async for message in messages:
                yield message

    async def health_check(self, request: pb.HealthCheckRequest, call: GrpcCall) -> pb.HealthCheckResponse:
        try:
            self._ready()
        except JaxserveError as error:
            return pb.HealthCheckResponse(healthy=False, message=error.message)
        return pb.HealthCheckResponse(healthy=True, message="ok")

    async def flush_cache(self, request: common.FlushCacheRequest, call: GrpcCall) -> common.FlushCacheResponse:
        await self._client.reset_prefix_cache()
        return common.FlushCacheResponse(success=True, message="the prefix cache is empty")

    async def abort(self, request: pb.AbortRequest, call: GrpcCall) -> pb.AbortResponse:
        """End requests; ones that are not running are passed over."""
        for request_id in request.request_ids:
            await abort(self._client, request_id, call.context)
        return pb.AbortResponse()

    async def get_model_info(self, request: pb.GetModelInfoRequest, call: GrpcCall) -> pb.GetModelInfoResponse:
        model, tokenizer = self._client.model, self._client.tokenizer
        return pb.GetModelInfoResponse(
            model_path=model.tokenizer or model.name,
            is_generation=True,
            max_context_length=model.max_model_len,
            vocab_size=model.vocab_size,
            served_model_name=model.name,
            tokenizer_path=model.tokenizer,
            architectures=[model.architecture],
            eos_token_ids=[] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id],
            bos_token_id=tokenizer.bos_token_id or 0,
            max_req_input_len=model.max_model_len,
        )

    async def get_server_info(self, request: pb.GetServerInfoRequest, call: GrpcCall) -> pb.GetServerInfoResponse:
        return pb.GetServerInfoResponse(
            active_requests=self._client.stats().active,
            is_paused=not accepts(self._ready),
            uptime_seconds=time.monotonic() - self._started,
            server_type="jaxserve",
            data_parallel_size=1,
        )

    async def get_loads(self, request: pb.GetLoadsRequest, call: GrpcCall) -> pb.GetLoadsResponse:
        if request.dp_rank:
            raise InvalidRequestError("dp_rank must be 0: there is no other", param="dp_rank")
        stats = self._client.stats()
        load = pb.SchedulerLoad(
            num_running_reqs=stats.running,
            num_waiting_reqs=stats.waiting,
            num_total_reqs=stats.running + stats.waiting,
            token_usage=1.0 - stats.pages_free / stats.pages_total if stats.pages_total else 0.0,
            cache_hit_rate=stats.prefix_hit_tokens / stats.prefix_queried_tokens if stats.prefix_queried_tokens else 0.0,
        )
        now = datetime.now(UTC).isoformat()
        return pb.GetLoadsResponse(timestamp=now, version=version_of("jaxserve"), dp_rank_count=1, loads=[load])

    async def get_tokenizer(
        self, request: common.GetTokenizerRequest, call: GrpcCall
    ) -> AsyncGenerator[common.GetTokenizerChunk, None]:
        path = self._client.model.tokenizer
        if not path:
            raise InternalError("this server does not know where its tokenizer's files are")
        archive = await asyncio.to_thread(tokenizer_archive, Path(path), self._client.chat_template)
        digest = hashlib.sha256(archive).hexdigest()
        for start in range(0, len(archive), _CHUNK_BYTES):
            piece = archive[start : start + _CHUNK_BYTES]
            last = start + len(piece) == len(archive)
            yield common.GetTokenizerChunk(data=piece, sha256=digest if last else "")

    def handler(self) -> grpc.GenericRpcHandler[bytes, Message]:
        return service(
            SERVICE,
            {
                "Generate": streaming(pb.GenerateRequest, self.generate),
                "HealthCheck": unary(pb.HealthCheckRequest, self.health_check),
                "FlushCache": unary(common.FlushCacheRequest, self.flush_cache),
                "Abort": unary(pb.AbortRequest, self.abort),
                "GetModelInfo": unary(pb.GetModelInfoRequest, self.get_model_info),
                "GetServerInfo": unary(pb.GetServerInfoRequest, self.get_server_info),
                "GetLoads": unary(pb.GetLoadsRequest, self.get_loads),
                "GetTokenizer": streaming(common.GetTokenizerRequest, self.get_tokenizer),
            },
        )
