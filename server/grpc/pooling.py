"""Pool of jaxserve.v1.Inference: from its messages to the work of a request, and back."""

from __future__ import annotations

import numpy as np

from jaxserve.engine.client import EngineClient
from jaxserve.errors import InvalidRequestError
from jaxserve.pooling.params import PoolingParams
from jaxserve.proto import inference_pb2 as pb
from server.grpc.calls import GrpcCall, check_request_id
from server.grpc.jobs import TENANT_METADATA, limit_names, options_of
from server.grpc.messages import present
from server.pooling import BINARY_BYTES, Floats, Pooled, PoolingWork, default_task
from server.requests import MAX_PROMPTS, TextOrIds, check_not_empty, listed, new_id

_PARAMS = ("task", "pooling", "dimensions", "use_activation")
_CHUNK = 16_384  # values that are Python floats at a time
_OPTIONS = ("service_class", "cache_salt", "queue_timeout", "timeout")


async def pool(client: EngineClient, request: pb.PoolRequest, call: GrpcCall) -> pb.PoolResponse:
    """Raises InvalidRequestError naming the proto's field, or what the request failed with; cancelling aborts it."""
    check_request_id(request.request_id)
    inputs = listed(request.inputs, MAX_PROMPTS, "inputs")
    check_not_empty(inputs, "inputs")
    pooler, given = client.model.pooler, present(request, _PARAMS)
    params = PoolingParams(**{"task": default_task(pooler), **given})
    limits = present(request, _OPTIONS)
    options = options_of(call, limits)
    names = {"tenant": TENANT_METADATA, "prompt": "inputs", **limit_names(options, limits, "timeout")}
    limit = request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else None
    work = PoolingWork(client, options, call.context, names, limit, BINARY_BYTES)
    prompt_name = request.prompt_name if request.HasField("prompt_name") else None
    prompts = [await _prompt(work, one, index, prompt_name) for index, one in enumerate(inputs)]
    call.request_id = request.request_id or new_id("pool")
    pooled = await work.pool(call.request_id, prompts, params)
    labels = () if pooler is None or params.embeds else pooler.labels
    return await client.run_long(lambda: _response(client.model.name, pooled, labels))


async def _prompt(work: PoolingWork, given: pb.PoolInput, index: int, prompt_name: str | None) -> TextOrIds:
    kind, pooler, name = given.WhichOneof("prompt"), work.client.model.pooler, f"inputs[{index}]"
    if kind == "text":
        check_not_empty(given.text, f"{name}.text")
        return given.text if pooler is None else pooler.prompted(given.text, prompt_name)
    if kind == "tokens":
        check_not_empty(given.tokens.ids, f"{name}.tokens")
        return list(given.tokens.ids)
    if kind == "pair":
        return await work.pair(given.pair.first, given.pair.second)
    raise InvalidRequestError(f"{name} is empty: one of text, tokens and pair", param=name)


def _response(model: str, pooled: Pooled, labels: tuple[str, ...]) -> pb.PoolResponse:
    usage = pb.Usage(prompt_tokens=pooled.tally.prompt, cached_tokens=pooled.tally.cached)
    vectors = [_vector(one) for one in pooled.vectors]
    return pb.PoolResponse(request_id=pooled.request_id, model=model, vectors=vectors, labels=labels, usage=usage)


def _vector(numbers: Floats) -> pb.Vector:
    vector, values = pb.Vector(rows=len(numbers) if numbers.ndim == 2 else 1), np.ravel(numbers)
    for start in range(0, len(values), _CHUNK):
        vector.values.extend(values[start : start + _CHUNK].tolist())
    return vector
