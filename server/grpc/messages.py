"""Between protobuf messages and the engine's own types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from jaxserve.engine.client import EngineClient, ModelInfo
from jaxserve.engine.events import Delta, Event, Finished, PositionLogprobs, Started, TokenLogprob, WeightRange
from jaxserve.errors import InvalidRequestError
from jaxserve.proto import inference_pb2 as pb
from jaxserve.sampling.params import (
    MAX_LISTED_IDS,
    MAX_LOGIT_BIAS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    NUMBERS,
    SamplingParams,
)
from jaxserve.sampling.structured import FIELD, MAX_CHOICES
from jaxserve.types import ChatMessage, FinishReason, Prompt
from server.grpc.calls import GrpcCall, check_request_id
from server.grpc.jobs import TENANT_METADATA, limit_names, options_of
from server.requests import (
    RequestJob,
    check_not_empty,
    in_words_of_client,
    listed,
    new_id,
    sampling_params,
    template_arguments,
)
from server.structured import OPTIONS, Way, form_of, ways
from server.tokenizing import truncated

_SAMPLING = ("n", "seed", *NUMBERS)
_STOPPING = ("max_tokens", "min_tokens", "ignore_eos")
_STOPPING_LISTS = ("stop", "stop_token_ids")
_OUTPUT = ("logprobs", "prompt_logprobs", "skip_special_tokens", "include_stop_str_in_output")
_OPTIONS = ("service_class", "cache_salt", "queue_timeout", "timeout", "max_total_tokens")

_NAMES = {
    "tenant": TENANT_METADATA,
    **{name: f"sampling.{name}" for name in (*_SAMPLING, "logit_bias", "allowed_token_ids")},
    **{name: f"stopping.{name}" for name in (*_STOPPING, *_STOPPING_LISTS)},
    **{name: f"output.{name}" for name in _OUTPUT},
    **{name: f"chat.{name}" for name in ("messages", "template_arguments", "add_generation_prompt")},
    "chat_template_kwargs": "chat.template_arguments",
}

_REASONS = {FinishReason.STOP: pb.FINISH_REASON_STOP, FinishReason.LENGTH: pb.FINISH_REASON_LENGTH}


async def job_of(client: EngineClient, request: pb.GenerateRequest, call: GrpcCall) -> RequestJob:
    """The request as the engine takes it. Raises InvalidRequestError naming the proto's field, or DeadlineError."""
    check_request_id(request.request_id)
    form = form_of(_ways(request.structured_outputs))
    params = sampling_params(client, {**_fields(request), FIELD: form.params}, _NAMES)
    limits = present(request, _OPTIONS)
    options = options_of(call, limits)
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise InvalidRequestError("prompt is required: one of text, tokens and chat", param="prompt")
    prompt = await _prompt(client, request, kind)
    if request.HasField("truncate_prompt_tokens"):
        prompt = await _cut(client, prompt, request.truncate_prompt_tokens, params)
    return RequestJob(
        request_id=request.request_id or new_id("gen"),
        prompts=(prompt,),
        params=params,
        options=options,
        names={**_NAMES, **limit_names(options, limits, "timeout"), "prompt": kind},
    )


def event_of(event: Event, request_id: str, output: pb.Output) -> pb.GenerateEvent:
    if isinstance(event, Started):
        return pb.GenerateEvent(request_id=request_id, started=_started(event, output))
    if isinstance(event, Delta):
        return pb.GenerateEvent(request_id=request_id, index=event.index, delta=_delta(event))
    return pb.GenerateEvent(request_id=request_id, index=event.index, finished=_finished(event))


def model_info_of(info: ModelInfo) -> pb.ModelInfo:
    return pb.ModelInfo(
        name=info.name,
        architecture=info.architecture,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        dtype=info.dtype,
        parameters=info.parameters,
        created=info.created,
    )


def _fields(request: pb.GenerateRequest) -> dict[str, Any]:
    fields = {
        **present(request.sampling, _SAMPLING),
        **present(request.stopping, _STOPPING),
        **present(request.output, _OUTPUT),
        "stop": listed(request.stopping.stop, MAX_STOP_STRINGS, "stopping.stop"),
        "stop_token_ids": listed(request.stopping.stop_token_ids, MAX_STOP_TOKEN_IDS, "stopping.stop_token_ids"),
        "logit_bias": dict(listed(request.sampling.logit_bias.items(), MAX_LOGIT_BIAS, "sampling.logit_bias")),
    }
    if request.sampling.HasField("allowed_token_ids"):
        ids = request.sampling.allowed_token_ids.ids
        fields["allowed_token_ids"] = listed(ids, MAX_LISTED_IDS, "sampling.allowed_token_ids")
    return fields


def _ways(given: pb.StructuredOutputs) -> list[Way]:
    kind = given.WhichOneof("form")
    if kind is None:
        return []
    value = listed(given.choice.texts, MAX_CHOICES, f"{FIELD}.choice") if kind == "choice" else getattr(given, kind)
    return ways({FIELD: {**present(given, OPTIONS), kind: value}})


def present(message: Message, names: Iterable[str]) -> dict[str, Any]:
    """The fields that are set; a plain bool counts as set, since its zero is its default."""
    descriptors = message.DESCRIPTOR.fields_by_name
    return {name: getattr(message, name) for name in names if not descriptors[name].has_presence or message.HasField(name)}


async def _prompt(client: EngineClient, request: pb.GenerateRequest, kind: str) -> Prompt:
    if request.HasField("add_special_tokens") and kind != "text":
        raise InvalidRequestError("add_special_tokens goes with text", param="add_special_tokens")
    if kind == "text":
        check_not_empty(request.text, "text")
        if not request.HasField("add_special_tokens"):
            return request.text
        return {"prompt_token_ids": await client.encode(request.text, add_special_tokens=request.add_special_tokens)}
    if kind == "tokens":
        return {"prompt_token_ids": prompt_ids(client, request.tokens.ids, "tokens", request.HasField("truncate_prompt_tokens"))}
    return await chat_prompt(client, request.chat)


def prompt_ids(client: EngineClient, ids: Sequence[int], param: str, truncates: bool) -> list[int]:
    """The ids of a prompt; of one that is truncated, those at its end. Raises InvalidRequestError or ContextLengthError."""
    check_not_empty(ids, param)
    if truncates:
        return list(ids[-client.model.max_model_len :])
    client.bounds.check_ids(len(ids), param)
    return list(ids)


async def tokens_of(client: EngineClient, prompt: Prompt, last: int | None = None) -> list[int]:
    """The prompt's tokens; with `last` only so many at its end are wanted."""
    given: Any = prompt  # narrows to one of three kinds
    if isinstance(given, str):
        return await client.encode(given, last=last)
    if "prompt_token_ids" in given:
        tokens: list[int] = given["prompt_token_ids"]
        return tokens
    return await client.encode(given["prompt"], last=last)


async def _cut(client: EngineClient, prompt: Prompt, limit: int, params: SamplingParams) -> Prompt:
    tokens = await tokens_of(client, prompt, client.model.max_model_len)
    return {"prompt_token_ids": truncated(client, tokens, limit, params.max_tokens, "truncate_prompt_tokens")}


async def chat_prompt(client: EngineClient, chat: pb.Chat) -> Prompt:
    """The rendered conversation. Raises InvalidRequestError naming the proto's field."""
    try:
        return await _rendered(client, chat)
    except InvalidRequestError as error:
        raise in_words_of_client(error, _NAMES) from error


async def _rendered(client: EngineClient, chat: pb.Chat) -> Prompt:
    if not chat.messages:
        raise InvalidRequestError("messages must not be empty", param="messages")
    opens = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else None
    arguments = template_arguments(
        MessageToDict(chat.template_arguments),
        "template_arguments",
        add_generation_prompt=opens,
        continue_final_message=chat.continue_final_message,
    )
    return await client.render_chat([_message(message) for message in chat.messages], arguments)


def _message(message: pb.ChatMessage) -> ChatMessage:
    plain: ChatMessage = {"role": message.role, "content": message.content}
    if message.HasField("name"):
        plain["name"] = message.name
    return plain


def _started(event: Started, output: pb.Output) -> pb.Started:
    return pb.Started(
        prompt_tokens=len(event.prompt_token_ids),
        cached_tokens=event.cached_tokens,
        queue_time=event.queue_time,
        prompt_logprobs=_positions(event.prompt_logprobs),
        prompt_token_ids=event.prompt_token_ids if output.return_prompt_token_ids else (),
    )


def _delta(event: Delta) -> pb.Delta:
    return pb.Delta(
        text=event.text,
        token_ids=event.token_ids,
        logprobs=_positions(event.logprobs),
        first_token_index=event.first_token_index,
    )


def _finished(event: Finished) -> pb.Finished:
    message = pb.Finished(
        reason=_REASONS[event.finish_reason],
        usage=pb.Usage(
            prompt_tokens=event.usage.prompt_tokens,
            completion_tokens=event.usage.completion_tokens,
            cached_tokens=event.usage.cached_tokens,
        ),
        timing=pb.Timing(queue=event.timing.queue, first_token=event.timing.first_token, total=event.timing.total),
    )
    if isinstance(event.matched, str):
        message.stop_string = event.matched
    elif event.matched is not None:
        message.stop_token_id = event.matched
    message.weight_versions.extend(_range(one) for one in event.weight_versions or ())
    return message


def _range(one: WeightRange) -> pb.WeightRange:
    message = pb.WeightRange(start=one.start, end=one.end)
    if isinstance(one.version, str):
        message.name = one.version
    else:
        message.number = one.version
    return message


def _positions(positions: Iterable[PositionLogprobs | None] | None) -> list[pb.PositionLogprobs]:
    return [
        pb.PositionLogprobs()
        if position is None
        else pb.PositionLogprobs(chosen=_token(position.chosen), top=[_token(token) for token in position.top])
        for position in positions or ()
    ]


def _token(token: TokenLogprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(token_id=token.token_id, logprob=token.logprob, rank=token.rank, raw=token.raw)
