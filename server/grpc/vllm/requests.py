"""From vLLM's GenerateRequest to a job. Zero stands for vLLM's default where it means nothing."""

from __future__ import annotations

from typing import Any

from jaxserve.engine.client import EngineClient
from jaxserve.errors import InvalidRequestError
from jaxserve.proto import vllm_engine_pb2 as pb
from jaxserve.sampling.params import MAX_LOGIT_BIAS, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS, SamplingParams
from jaxserve.sampling.structured import MAX_CHOICES
from jaxserve.types import Prompt
from server.grpc.calls import GrpcCall, check_request_id
from server.grpc.jobs import TENANT_METADATA, limit_names, options_of
from server.grpc.messages import prompt_ids
from server.requests import RequestJob, check_not_empty, listed, new_id, sampling_params
from server.structured import Form, form_of, ways
from server.tokenizing import truncated
from server.unsupported.check import pass_over

_PLAIN = (
    "frequency_penalty",
    "presence_penalty",
    "min_tokens",
    "skip_special_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
)
_LEFT_OUT_AT_ZERO = ("top_p", "top_k", "min_p", "repetition_penalty", "n")  # fields that cannot say that they are not set
_OPTIONAL = ("temperature", "max_tokens", "logprobs", "prompt_logprobs", "seed")
_LISTS = {"stop": MAX_STOP_STRINGS, "stop_token_ids": MAX_STOP_TOKEN_IDS}
_OTHER = ("logit_bias", "truncate_prompt_tokens")
_NAMES = {
    "tenant": TENANT_METADATA,
    **{name: f"sampling_params.{name}" for name in (*_PLAIN, *_LEFT_OUT_AT_ZERO, *_OPTIONAL, *_LISTS, *_OTHER)},
}


async def job_of(client: EngineClient, request: pb.GenerateRequest, call: GrpcCall) -> RequestJob:
    """The request as the engine takes it. Raises InvalidRequestError naming the proto's field, or DeadlineError."""
    _refuse(request)
    check_request_id(request.request_id)
    given = request.sampling_params
    form = _form(given)
    params = sampling_params(client, {**_fields(given), "structured_outputs": form.params}, _NAMES)
    kind = request.WhichOneof("input")
    if kind is None:
        raise InvalidRequestError("input is required: one of tokenized and text", param="input")
    prompt = _prompt(client, request, kind)
    if given.HasField("truncate_prompt_tokens"):
        prompt = await _cut(client, prompt, given.truncate_prompt_tokens, params)
    options = options_of(call, {})
    return RequestJob(
        request_id=request.request_id or new_id("gen"),
        prompts=(prompt,),
        params=params,
        options=options,
        names={
            **_NAMES,
            **form.names,
            **limit_names(options, {}, "timeout"),
            "prompt": "tokenized.input_ids" if kind == "tokenized" else kind,
        },
    )


def _refuse(request: pb.GenerateRequest) -> None:
    """Raise InvalidRequestError for what this engine cannot do, unless it is to be dropped."""
    for name in ("kv_transfer_params", "mm_inputs", "kv_transfer_params_json", "media_refs"):
        if request.HasField(name):
            pass_over(name, True, name)  # an empty message asks too
    pass_over("extra_mm_inputs", list(request.extra_mm_inputs), "extra_mm_inputs")
    pass_over("data_parallel_rank", request.data_parallel_rank, "data_parallel_rank")


def _form(given: pb.SamplingParams) -> Form:
    constraint = given.WhichOneof("constraint")
    if constraint is None:
        return Form()
    value = getattr(given, constraint)
    if constraint == "choice":
        value = listed(value.choices, MAX_CHOICES, "sampling_params.choice")
    return form_of(ways({constraint: value}, "sampling_params."))


def _fields(given: pb.SamplingParams) -> dict[str, Any]:
    return {
        **{name: getattr(given, name) for name in _PLAIN},
        **{name: getattr(given, name) or None for name in _LEFT_OUT_AT_ZERO},
        **{name: getattr(given, name) for name in _OPTIONAL if given.HasField(name)},
        **{name: listed(getattr(given, name), most, _NAMES[name]) for name, most in _LISTS.items()},
        "logit_bias": dict(listed(given.logit_bias.items(), MAX_LOGIT_BIAS, _NAMES["logit_bias"])),
    }


def _prompt(client: EngineClient, request: pb.GenerateRequest, kind: str) -> Prompt:
    if kind == "text":
        check_not_empty(request.text, "text")
        return request.text
    truncates = request.sampling_params.HasField("truncate_prompt_tokens")
    return {"prompt_token_ids": prompt_ids(client, request.tokenized.input_ids, "tokenized.input_ids", truncates)}


async def _cut(client: EngineClient, prompt: Prompt, limit: int, params: SamplingParams) -> Prompt:
    if isinstance(prompt, str):
        tokens = await client.encode(prompt, last=client.model.max_model_len)
    else:
        tokens = prompt["prompt_token_ids"]  # type: ignore[typeddict-item]  # no text in a mapping comes here
    return {"prompt_token_ids": truncated(client, tokens, limit, params.max_tokens, "sampling_params.truncate_prompt_tokens")}
