"""ModelInfer of a model that pools: texts, or pairs of them, in; a row of numbers for each out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxserve.engine.client import EngineClient
from jaxserve.errors import InvalidRequestError
from jaxserve.pooling.params import PoolingParams
from jaxserve.proto import kserve_pb2 as pb
from server.kserve.replies import FINAL
from server.kserve.requests import OPTIONS, VERSION, Carrier, check_version, options_among, plain_parameters
from server.kserve.tensors import inputs_of, numbers, texts_of
from server.pooling import Pooled, PoolingWork, default_task
from server.requests import MAX_PROMPTS, TextOrIds, check_not_empty, in_words_of_client, listed

INPUTS = {"text_input": "BYTES", "text_pair": "BYTES"}
EMBEDDING, SCORES, TOKENS = "embedding", "scores", "num_input_tokens"
OUTPUTS = {EMBEDDING: "FP32", SCORES: "FP32", TOKENS: "UINT32"}
_TASKS = {"embed": EMBEDDING, "classify": SCORES, "score": SCORES, "reward": SCORES}
_PARAMS = frozenset({"task", "pooling", "dimensions", "use_activation"})
_OWN = frozenset({"prompt_name", "truncate_prompt_tokens"})


def pools(client: EngineClient, request: pb.ModelInferRequest) -> bool:
    """Whether vectors are asked for: of a model that generates as well by naming the parameter `task`."""
    return only_pools(client) or (client.model.pooler is not None and "task" in request.parameters)


def only_pools(client: EngineClient) -> bool:
    return not client.model.generates


def outputs_of(client: EngineClient) -> dict[str, str]:
    """The output tensors of a model that pools, by datatype."""
    pooler = client.model.pooler
    made = {_TASKS[task] for task in _TASKS if pooler is not None and task in pooler.tasks}
    return {name: datatype for name, datatype in OUTPUTS.items() if name in made or name == TOKENS}


async def infer_vectors(
    client: EngineClient, request: pb.ModelInferRequest, carrier: Carrier, request_id: str
) -> pb.ModelInferResponse:
    """Answer a request whose model pools; cancelling aborts. Raises JaxserveError naming the tensor or parameter."""
    check_version(request.model_version)
    given = plain_parameters(request)
    for name in given.keys() - _PARAMS - _OWN - OPTIONS:
        raise InvalidRequestError(
            f"parameters.{name[:100]} is no parameter of a model that pools", param=f"parameters.{name[:100]}"
        )
    options = options_among(given)
    names = {**{name: f"parameters.{name}" for name in given}, "prompt": "text_input", "tenant": carrier.tenant}
    granted = carrier.options_of(options)
    if granted.timeout != options.get("timeout"):
        names["timeout"] = carrier.deadline
    work = PoolingWork(client, granted, carrier.context, names, _limit(given))
    try:
        wanted = _wanted(client, given)
        outputs = _chosen(request, _TASKS[wanted.task])
        pooled = await work.pool(request_id, await _prompts(work, request, given.get("prompt_name")), wanted)
    except InvalidRequestError as error:
        raise in_words_of_client(error, names) from error
    return _answer(client, request.id, outputs, pooled)


def _limit(given: Mapping[str, Any]) -> int | None:
    """Tokens of a text; in what range is checked where it is cut."""
    limit = given.get("truncate_prompt_tokens")
    if limit is not None and type(limit) is not int:
        name = "parameters.truncate_prompt_tokens"
        raise InvalidRequestError(f"{name} must be an integer, got {limit!r}"[:200], param=name)
    return limit


def _wanted(client: EngineClient, given: Mapping[str, Any]) -> PoolingParams:
    params = {name: value for name, value in given.items() if name in _PARAMS}
    wanted = PoolingParams(**{"task": default_task(client.model.pooler), **params})
    if wanted.task not in _TASKS:
        raise InvalidRequestError(f"task must be one of {', '.join(_TASKS)}, got {wanted.task!r}", param="task")
    return wanted


async def _prompts(work: PoolingWork, request: pb.ModelInferRequest, prompt_name: Any) -> list[TextOrIds]:
    firsts, seconds = _inputs(request)
    if seconds is not None:
        return [await work.pair(*pair) for pair in zip(firsts, seconds, strict=True)]
    pooler = work.client.model.pooler
    return [text if pooler is None else pooler.prompted(text, prompt_name) for text in firsts]


def _answer(client: EngineClient, name: str, outputs: Sequence[str], pooled: Pooled) -> pb.ModelInferResponse:
    vectors: Any = np.stack(pooled.vectors)
    answer = pb.ModelInferResponse(model_name=client.model.name, model_version=VERSION, id=name)
    answer.parameters[FINAL].bool_param = True
    for output in outputs:
        if output == TOKENS:
            shape, contents = (1,), numbers("UINT32", [pooled.tally.prompt])
        else:
            shape, contents = vectors.shape, vectors.astype("<f4").tobytes()
        answer.outputs.add(name=output, datatype=OUTPUTS[output], shape=shape)
        answer.raw_output_contents.append(contents)
    return answer


def _inputs(request: pb.ModelInferRequest) -> tuple[Sequence[str], Sequence[str] | None]:
    inputs = inputs_of(request)
    for name in inputs:
        if name not in INPUTS:
            raise InvalidRequestError(
                f"there is no input {name[:100]!r} of a model that pools: known are {', '.join(INPUTS)}", param="inputs"
            )
    if "text_input" not in inputs:
        raise InvalidRequestError("text_input is required", param="text_input")
    found = {name: listed(texts_of(*given), MAX_PROMPTS, name) for name, given in inputs.items()}
    for name, texts in found.items():
        check_not_empty(texts, name)
        for text in texts:
            check_not_empty(text, name)
    firsts, seconds = found["text_input"], found.get("text_pair")
    if seconds is not None and len(seconds) != len(firsts):
        raise InvalidRequestError(
            f"text_pair must have as many texts as text_input, {len(firsts)}, got {len(seconds)}", param="text_pair"
        )
    return firsts, seconds


def _chosen(request: pb.ModelInferRequest, made: str) -> tuple[str, ...]:
    """The outputs that are named; without names what the task makes."""
    named = {output.name for output in request.outputs}
    for name in named:
        if name not in (made, TOKENS):
            raise InvalidRequestError(
                f"there is no output {name[:100]!r} of this task: known are {made}, {TOKENS}", param="outputs"
            )
    return tuple(name for name in (made, TOKENS) if name in named or (not named and name == made))
