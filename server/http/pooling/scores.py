"""POST /score and /rerank, under /v1 as well."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from fastapi import APIRouter, Request, Response

from jaxserve.engine.client import EngineClient
from jaxserve.errors import InvalidRequestError
from jaxserve.pooling.params import PoolingParams
from server.http import examples
from server.http.disconnect import until_gone
from server.http.error_bodies import KserveErrorBody
from server.http.headers import client_of, context_of
from server.http.openapi import GENERATING, answer, failures
from server.http.pooling.protocol import PooledFields, RerankRequest, ScoreRequest
from server.http.pooling.replies import RerankReply, RerankResult, ScoreReply
from server.http.pooling.work import head, json_answer, usage, work_of
from server.http.strict_json import StrictJsonRoute
from server.pooling import Pooled, PoolingWork
from server.requests import MAX_PROMPTS, admit, check_not_empty, named_id

router = APIRouter(route_class=StrictJsonRoute, tags=["pooling"])


@router.post("/v1/score", responses={**answer(ScoreReply, examples.SCORES), **failures(GENERATING)})
@router.post("/score", responses={**answer(ScoreReply, examples.SCORES), **failures(GENERATING)})
async def score(body: ScoreRequest, request: Request) -> Response:
    """How relevant each document is to the query, or to that at its place."""
    client, work = _work(body, request)
    queries, documents = listed(body.queries, "queries"), listed(body.documents, "documents")
    if len(queries) not in (1, len(documents)):
        raise InvalidRequestError(
            f"queries must be one, or as many as documents: they are {len(queries)} and {len(documents)}", param="queries"
        )
    pairs = list(zip(queries * (len(documents) if len(queries) == 1 else 1), documents, strict=True))
    scores, pooled = await until_gone(request.receive, _scores(work, body, "score-", pairs))

    def reply() -> ScoreReply:
        data = [{"index": index, "object": "score", "score": one} for index, one in enumerate(scores)]
        return {**head(client, pooled), "data": data, "usage": usage(pooled)}  # type: ignore[typeddict-item]

    return await json_answer(client, reply, len(scores))


@router.post("/v2/rerank", responses={**answer(RerankReply, examples.RERANKED), **failures(GENERATING, KserveErrorBody)})
@router.post("/v1/rerank", responses={**answer(RerankReply, examples.RERANKED), **failures(GENERATING)})
@router.post("/rerank", responses={**answer(RerankReply, examples.RERANKED), **failures(GENERATING)})
async def rerank(body: RerankRequest, request: Request) -> Response:
    """Documents by their relevance to the query, the most relevant first."""
    client, work = _work(body, request)
    documents = listed([one if isinstance(one, str) else one.text for one in body.documents], "documents")
    check_not_empty(body.query, "query")
    if body.top_n is not None and body.top_n < 0:
        raise InvalidRequestError(f"top_n must be at least 0 (got {body.top_n})", param="top_n")
    scores, pooled = await until_gone(request.receive, _scores(work, body, "rerank-", [(body.query, one) for one in documents]))

    def reply() -> RerankReply:
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        results: list[RerankResult] = []
        for index in order if not body.top_n else order[: body.top_n]:
            result: RerankResult = {"index": index, "relevance_score": scores[index]}
            if body.return_documents is not False:
                result["document"] = {"text": documents[index]}
            results.append(result)
        return {"id": pooled.request_id, "model": client.model.name, "results": results, "usage": usage(pooled)}

    return await json_answer(client, reply, len(scores))


def _work(body: ScoreRequest | RerankRequest, request: Request) -> tuple[EngineClient, PoolingWork]:
    client = admit(client_of(request), body.model, context_of(request))
    return client, work_of(client, body, request, prompt="documents")


def listed(given: str | Sequence[str], param: str) -> list[str]:
    """Texts as a list. Raises InvalidRequestError for none, too many, or an empty one."""
    texts = [given] if isinstance(given, str) else list(given)
    check_not_empty(texts, param)
    if len(texts) > MAX_PROMPTS:
        raise InvalidRequestError(f"{param} must be at most {MAX_PROMPTS} texts, got {len(texts)}", param=param)
    for index, text in enumerate(texts):
        check_not_empty(text, f"{param}[{index}]")
    return texts


async def _scores(
    work: PoolingWork, body: PooledFields, prefix: str, pairs: Sequence[tuple[str, str]]
) -> tuple[list[float], Pooled]:
    """Of a reranker what its head says of both texts together; of others the cosine of their embeddings."""
    pooler, name = work.client.model.pooler, named_id(prefix, body.request_id)
    if pooler is None or "score" in pooler.tasks or "embed" not in pooler.tasks:
        prompts = [await work.pair(*pair) for pair in pairs]
        pooled = await work.pool(name, prompts, PoolingParams(task="score", use_activation=body.use_activation))
        return [float(one[0]) for one in pooled.vectors], pooled
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    pooled = await work.pool(name, texts, PoolingParams(use_activation=True))
    embedded = dict(zip(texts, pooled.vectors, strict=True))
    return [float(np.dot(embedded[first], embedded[second])) for first, second in pairs], pooled
