"""POST /inference/v1/generate and /inference/v1/abort_requests."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from fastapi import APIRouter, Request, Response

from jaxserve.engine.client import EngineClient
from jaxserve.engine.events import Event, Finished, PositionLogprobs, Started
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import RequestOptions
from server.context import RequestContext
from server.http import examples
from server.http.disconnect import until_gone
from server.http.failures import pieces_response
from server.http.generate.protocol import AbortRequest, GenerateRequest
from server.http.generate.replies import GenerateChoiceReply, GenerateReason, GenerateReply
from server.http.generation import Gathered, encoded, gather, stream_frames, usage_reply, versions_of, written
from server.http.headers import TENANT_HEADER, client_of, context_of, options_of
from server.http.logprobs import chat_logprobs, prompt_logprobs, token_logprobs
from server.http.openapi import ASKING, GENERATING, answer, failures
from server.http.replies import ChatLogprobsReply, PromptLogprobsReply, TokenLogprobsReply
from server.http.sse import stream
from server.http.strict_json import StrictJsonRoute
from server.requests import RequestJob, admit, check_not_empty, engine_prompt, named_id, sampling_params
from server.streams import Events, abort_named, run

router = APIRouter(route_class=StrictJsonRoute, tags=["tokens"])

_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **{field.name: f"sampling_params.{field.name}" for field in fields(SamplingParams)},
        "prompt": "token_ids",
        "tenant": TENANT_HEADER,
    }
)
_NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})  # a trainer's log-probabilities are of what it asked for, not of more


@router.post(
    "/inference/v1/generate",
    responses={**answer(GenerateReply, examples.GENERATE, streamed=examples.GENERATE_STREAM), **failures(GENERATING)},
)
async def generate(body: GenerateRequest, request: Request) -> Response:
    """Go on with token ids, and tell the output's."""
    context = context_of(request)
    client = admit(client_of(request), body.model, context)
    job = _job(client, body, options_of(body, request.headers))
    events = run(client, job, context)
    if body.stream:
        head = _head(body, job)
        return await stream(request, stream_frames(client, events, partial(_chunks, body), head, body.stream_options))
    return await until_gone(request.receive, _answer(client, events, body, job))


@router.post(
    "/inference/v1/abort_requests", response_class=Response, responses={200: {"description": "done"}, **failures(ASKING)}
)
async def abort_requests(body: AbortRequest, request: Request) -> Response:
    """End own requests, of any endpoint; those that run no more, and others', are passed over. An empty 200, as vLLM answers."""
    await abort_named(client_of(request), body.request_ids, context_of(request))
    return Response()


async def generate_reply(
    client: EngineClient, body: GenerateRequest, options: RequestOptions, context: RequestContext
) -> GenerateReply:
    """What the endpoint answers to a body that wants no stream. Raises JaxserveError; cancelling aborts."""
    client = admit(client, body.model, context)
    job = _job(client, body, options)
    gathered, tally = await gather(run(client, job, context), job.params.n)
    started = gathered[0].started
    return {
        **_whole_head(client, body, job),  # type: ignore[typeddict-item]
        "choices": [_choice(body, index, one) for index, one in enumerate(gathered)],
        "usage": usage_reply(tally),
        "prompt_logprobs": _scores(started),
        "prompt_token_ids": _prompt_ids(body, started),
    }


def _job(client: EngineClient, body: GenerateRequest, options: RequestOptions) -> RequestJob:
    check_not_empty(body.token_ids, "token_ids")
    asked = body.sampling_params
    form = asked.form("sampling_params.")
    names = {**_NAMES, **form.names}
    params = sampling_params(client, {**asked.sampling(), "structured_outputs": form.params}, names, defaults=_NO_DEFAULTS)
    return RequestJob(
        request_id=named_id("generate-tokens-", body.request_id),
        prompts=(engine_prompt(body.token_ids),),
        params=params,
        options=options,
        names=names,
        tells_aborted=True,
    )


async def _answer(client: EngineClient, events: Events, body: GenerateRequest, job: RequestJob) -> Response:
    choices, started, tally = await encoded(client, events, job.params.n, partial(_choice, body))
    tail = {
        "usage": await written(client, partial(usage_reply, tally), 0),
        "prompt_logprobs": await written(client, partial(_scores, started), len(started.prompt_logprobs or ())),
        "prompt_token_ids": await written(client, partial(_prompt_ids, body, started), 0),
    }
    return pieces_response(_whole_head(client, body, job), choices, tail)


def _head(body: GenerateRequest, job: RequestJob) -> dict[str, Any]:
    return {"request_id": job.request_id, "output_mode": body.mode}


def _whole_head(client: EngineClient, body: GenerateRequest, job: RequestJob) -> dict[str, Any]:
    return {**_head(body, job), "created": int(time.time()), "model": client.model.name}


def _scores(started: Started) -> PromptLogprobsReply | None:
    return None if started.prompt_logprobs is None else prompt_logprobs(started.prompt_logprobs)


def _prompt_ids(body: GenerateRequest, started: Started) -> list[int] | None:
    return list(started.prompt_token_ids) if body.return_token_ids else None


def _logprobs(
    body: GenerateRequest, positions: Sequence[PositionLogprobs] | None
) -> TokenLogprobsReply | ChatLogprobsReply | None:
    count = body.sampling_params.logprobs
    if count is None or positions is None:
        return None
    return chat_logprobs(positions) if body.mode == "text" else token_logprobs(positions, count)


def _with_text(body: GenerateRequest, choice: GenerateChoiceReply, text: str) -> GenerateChoiceReply:
    return {**choice, "text": text} if body.mode == "text" else choice


def _choice(body: GenerateRequest, index: int, one: Gathered) -> GenerateChoiceReply:
    choice: GenerateChoiceReply = {
        "index": index,
        "token_ids": one.token_ids,
        "logprobs": _logprobs(body, one.logprobs),
        "finish_reason": cast(GenerateReason, one.finish_reason),  # here also "abort", and never "tool_calls"
    }
    return _with_text(body, {**choice, **one.versions}, "".join(one.text))


def _chunks(body: GenerateRequest, which: int, event: Event) -> Sequence[Mapping[str, Any]]:
    """What an event adds to a stream: what is asked of the prompt first, without choices."""
    if isinstance(event, Started):
        of_prompt = {"prompt_token_ids": _prompt_ids(body, event), "prompt_logprobs": _scores(event)}
        told = {name: value for name, value in of_prompt.items() if value is not None}
        return [{"choices": (), **told}] if told else ()
    choice: GenerateChoiceReply
    if isinstance(event, Finished):
        choice = {"index": event.index, "token_ids": [], "logprobs": None, "finish_reason": event.finish_reason.value}
        return [_chunk(body, {**choice, **versions_of(event)}, "")]
    choice = {
        "index": event.index,
        "token_ids": list(event.token_ids),
        "logprobs": _logprobs(body, event.logprobs),
        "finish_reason": None,
    }
    return [_chunk(body, choice, event.text)]


def _chunk(body: GenerateRequest, choice: GenerateChoiceReply, text: str) -> Mapping[str, Any]:
    return {"choices": (_with_text(body, choice, text),)}
