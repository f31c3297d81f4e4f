"""POST /v1/embeddings, /pooling and /classify."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from fastapi import APIRouter, Request, Response

from jaxserve.engine.client import EngineClient
from jaxserve.pooling.params import PoolingParams
from jaxserve.types import RequestOptions
from server.context import RequestContext
from server.http import examples
from server.http.disconnect import until_gone
from server.http.headers import client_of, context_of
from server.http.openapi import GENERATING, answer, failures
from server.http.pooling.protocol import ClassifyRequest, EmbeddingRequest, EncodingFormat, PoolingRequest
from server.http.pooling.replies import ClassData, ClassifyReply, EmbeddingReply, PoolingReply
from server.http.pooling.work import head, json_answer, usage, work_for, work_of
from server.http.prompts import prompts_in
from server.http.strict_json import StrictJsonRoute
from server.json_vectors import encode
from server.pooling import Floats, Pooled, PoolingWork, default_task
from server.requests import TextOrIds, admit, named_id

router = APIRouter(route_class=StrictJsonRoute, tags=["pooling"])


@router.post("/v1/embeddings", responses={**answer(EmbeddingReply, examples.EMBEDDINGS), **failures(GENERATING)})
async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """The embedding of one text or of several."""
    client, work = _work(body, request)
    params = PoolingParams(dimensions=body.dimensions, use_activation=body.use_activation)
    pooled = await until_gone(request.receive, work.pool(named_id("embd-", body.request_id), _prompts(client, body), params))
    return await json_answer(client, lambda: _embedding_reply(client, pooled, body.encoding_format), pooled.numbers)


async def embedding_reply(
    client: EngineClient, body: EmbeddingRequest, options: RequestOptions, context: RequestContext
) -> EmbeddingReply:
    """What the endpoint answers to a body. Raises JaxserveError; cancelling aborts."""
    client = admit(client, body.model, context)
    params = PoolingParams(dimensions=body.dimensions, use_activation=body.use_activation)
    work = work_for(client, body, options, context, (body.encoding_format or "float",))
    pooled = await work.pool(named_id("embd-", body.request_id), _prompts(client, body), params)

    def reply() -> EmbeddingReply:
        made: Any = _embedding_reply(client, pooled, body.encoding_format)
        return {**made, "data": msgspec.Raw(encode(made["data"]))}  # type: ignore[typeddict-item]

    return await client.run_long(reply)


@router.post("/pooling", responses={**answer(PoolingReply, examples.POOLING), **failures(GENERATING)})
async def pooling(body: PoolingRequest, request: Request) -> Response:
    """What is pooled of one text or of several: an embedding, every token's, or outputs of the model's head."""
    client, work = _work(body, request)
    task = body.task or default_task(client.model.pooler)
    params = PoolingParams(task=task, pooling=body.pooling, dimensions=body.dimensions, use_activation=body.use_activation)
    pooled = await until_gone(request.receive, work.pool(named_id("pool-", body.request_id), _prompts(client, body), params))

    def reply() -> PoolingReply:
        data = [written(vector, body.encoding_format) for vector in pooled.vectors]
        listed: Any = [{"index": index, "object": "pooling", "data": one} for index, one in enumerate(data)]
        return {**head(client, pooled), "data": listed, "usage": usage(pooled)}  # type: ignore[typeddict-item]

    return await json_answer(client, reply, pooled.numbers)


@router.post("/classify", responses={**answer(ClassifyReply, examples.CLASSES), **failures(GENERATING)})
async def classify(body: ClassifyRequest, request: Request) -> Response:
    """The class of one text or of several, with the probability of each."""
    client, work = _work(body, request)
    params = PoolingParams(task="classify", use_activation=body.use_activation)
    pooled = await until_gone(
        request.receive, work.pool(named_id("classify-", body.request_id), prompts_in(body.input, "input"), params)
    )
    labels = () if client.model.pooler is None else client.model.pooler.labels

    def reply() -> ClassifyReply:
        data = [_class(index, vector, labels) for index, vector in enumerate(pooled.vectors)]
        return {**head(client, pooled), "data": data, "usage": usage(pooled)}  # type: ignore[typeddict-item]

    return await json_answer(client, reply, pooled.numbers)


def _work(body: EmbeddingRequest | ClassifyRequest, request: Request) -> tuple[EngineClient, PoolingWork]:
    client = admit(client_of(request), body.model, context_of(request))
    encoding = body.encoding_format if isinstance(body, EmbeddingRequest) else None
    return client, work_of(client, body, request, (encoding or "float",))


def _prompts(client: EngineClient, body: EmbeddingRequest) -> list[TextOrIds]:
    """Texts behind the model's prompt of their kind, if it has one."""
    prompts, pooler = prompts_in(body.input, "input"), client.model.pooler
    if pooler is None:
        return prompts
    return [pooler.prompted(one, body.prompt_name) if isinstance(one, str) else one for one in prompts]


def _embedding_reply(client: EngineClient, pooled: Pooled, encoding: EncodingFormat | None) -> EmbeddingReply:
    data = [written(vector, encoding) for vector in pooled.vectors]
    listed: Any = [{"index": index, "object": "embedding", "embedding": one} for index, one in enumerate(data)]
    return {**head(client, pooled), "data": listed, "usage": usage(pooled)}  # type: ignore[typeddict-item]


def _class(index: int, probabilities: Floats, labels: tuple[str, ...]) -> ClassData:
    likeliest = int(probabilities.argmax())
    return {
        "index": index,
        "label": labels[likeliest],
        "probs": written(probabilities, "float"),
        "num_classes": len(probabilities),
    }


def written(vector: Floats, encoding: EncodingFormat | None) -> Any:
    """A vector as `server.json_vectors.encode` takes it: bytes become base64."""
    return memoryview(np.ascontiguousarray(vector, "<f4")).cast("B") if encoding == "base64" else vector
