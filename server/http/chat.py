"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from jaxserve.engine.client import EngineClient
from jaxserve.engine.events import Delta, Event, Finished, Started
from jaxserve.errors import JaxserveError
from jaxserve.types import RequestOptions
from server.http import examples
from server.http.conversation import plain
from server.http.disconnect import until_gone
from server.http.failures import pieces_response
from server.http.generation import Gathered, encoded, fingerprint_of, gather, reason_of, stream_frames, written
from server.http.headers import TENANT_HEADER, options_of
from server.http.logprobs import chat_logprobs, prompt_logprobs
from server.http.openapi import GENERATING, answer, failures
from server.http.prompts import cut, named_id, tokens_of
from server.http.protocol import ChatRequest
from server.http.replies import ChatChoiceReply, ChatChunkChoiceReply, ChatReply
from server.http.sse import stream
from server.http.strict_json import StrictJsonRoute
from server.requests import Job, admit, check_not_empty, in_words_of_client, sampling_params, template_arguments
from server.streams import Events, run

router = APIRouter(route_class=StrictJsonRoute)


@router.post(
    "/v1/chat/completions",
    responses={**answer(ChatReply, examples.CHAT, streamed=examples.CHAT_STREAM), **failures(GENERATING)},
    tags=["text"],
)
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    client: EngineClient = request.app.state.client
    admit(client, body.model)
    job = await until_gone(request.receive, _job(client, body, options_of(body, request.headers)))
    events = run(client, job)
    if body.stream:
        head = _head(client, body, job, "chat.completion.chunk")
        return await stream(request, stream_frames(client, events, _Chunks(body, job), head, body.stream_options))
    return await until_gone(request.receive, _answer(client, events, body, job))


async def chat_reply(client: EngineClient, body: ChatRequest, options: RequestOptions) -> ChatReply:
    """What the endpoint answers to a body that wants no stream. Raises JaxserveError; cancelling aborts."""
    admit(client, body.model)
    job = await _job(client, body, options)
    return await _whole(client, run(client, job), body, job)


def _head(client: EngineClient, body: ChatRequest, job: Job, kind: str) -> dict[str, Any]:
    """What an answer, or each chunk of one, begins with."""
    return {
        "id": job.request_id,
        "object": kind,
        "created": int(time.time()),
        "model": client.model.name,
        "system_fingerprint": fingerprint_of(client.model),
        **body.tier(),
    }


async def _job(client: EngineClient, body: ChatRequest, options: RequestOptions) -> Job:
    check_not_empty(body.messages, "messages")
    names = {"prompt": "messages", "logprobs": "top_logprobs", "tenant": TENANT_HEADER}
    fields = body.sampling()
    if body.max_completion_tokens is not None:
        fields["max_tokens"] = body.max_completion_tokens
        names["max_tokens"] = "max_completion_tokens"
    if body.with_logprobs():
        fields["logprobs"] = body.top_logprobs or 0
    params = sampling_params(client, fields, names)
    arguments = template_arguments(
        body.chat_template_kwargs or {},
        "chat_template_kwargs",
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
    )
    try:
        prompt = await client.render_chat(plain(body.messages), arguments)
    except JaxserveError as error:
        raise in_words_of_client(error, names) from error
    if body.truncate_prompt_tokens is not None:
        prompt = {"prompt_token_ids": cut(client, tokens_of(prompt), body.truncate_prompt_tokens, params.max_tokens)}
    request_id = named_id("chatcmpl-", body.request_id)
    return Job(request_id=request_id, prompts=(prompt,), params=params, options=options, names=names)


async def _answer(client: EngineClient, events: Events, body: ChatRequest, job: Job) -> Response:
    choices, started, tally = await encoded(client, events, job.params.n, lambda index, one: _choice(index, one, body))
    tail = {"usage": await written(client, tally.reply, 0)}
    if body.return_token_ids:
        tail["prompt_token_ids"] = await written(client, partial(list, started.prompt_token_ids), 0)
    scores = started.prompt_logprobs
    if scores is not None:
        tail["prompt_logprobs"] = await written(client, partial(prompt_logprobs, scores), len(scores))
    return pieces_response(_head(client, body, job, "chat.completion"), choices, tail)


async def _whole(client: EngineClient, events: Events, body: ChatRequest, job: Job) -> ChatReply:
    gathered, tally = await gather(events, job.params.n)
    reply: ChatReply = {
        **_head(client, body, job, "chat.completion"),  # type: ignore[typeddict-item]
        "choices": [_choice(index, one, body) for index, one in enumerate(gathered)],
        "usage": tally.reply(),
    }
    if body.return_token_ids:
        reply["prompt_token_ids"] = list(gathered[0].started.prompt_token_ids)
    positions = gathered[0].started.prompt_logprobs
    if positions is not None:
        reply["prompt_logprobs"] = prompt_logprobs(positions)
    return reply


def _choice(index: int, one: Gathered, body: ChatRequest) -> ChatChoiceReply:
    choice: ChatChoiceReply = {
        "index": index,
        "message": {"role": "assistant", "content": "".join(one.text), "refusal": None},
        "logprobs": chat_logprobs(one.logprobs, as_ids=bool(body.return_tokens_as_token_ids)) if body.with_logprobs() else None,
        "finish_reason": one.reason,
    }
    if body.return_token_ids:
        choice["token_ids"] = one.token_ids
    return choice


class _Chunks:
    """Turns events into what each adds to a chunk."""

    def __init__(self, body: ChatRequest, job: Job) -> None:
        self._sequences = job.params.n
        self._as_ids = bool(body.return_tokens_as_token_ids)
        self._with_ids = bool(body.return_token_ids)

    def __call__(self, which: int, event: Event) -> Sequence[Mapping[str, Any]]:
        if isinstance(event, Started):
            return [self._opening(index, event) for index in range(self._sequences)]
        if isinstance(event, Finished):
            return [_chunk({"index": event.index, "delta": {}, "logprobs": None, "finish_reason": reason_of(event)})]
        return self._addition(event)

    def _opening(self, index: int, event: Started) -> Mapping[str, Any]:
        choice: ChatChunkChoiceReply = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        if event.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(event.prompt_logprobs)
        ids = {"prompt_token_ids": event.prompt_token_ids} if self._with_ids and index == 0 else {}
        return {**_chunk(choice), **ids}

    def _addition(self, event: Delta) -> Sequence[Mapping[str, Any]]:
        if not event.text and event.logprobs is None and not self._with_ids:
            return ()  # text held back: there is nothing to say yet
        logprobs = None if event.logprobs is None else chat_logprobs(event.logprobs, as_ids=self._as_ids)
        choice: ChatChunkChoiceReply = {
            "index": event.index,
            "delta": {"content": event.text},
            "logprobs": logprobs,
            "finish_reason": None,
        }
        if self._with_ids:
            choice["token_ids"] = list(event.token_ids)
        return (_chunk(choice),)


def _chunk(choice: ChatChunkChoiceReply) -> Mapping[str, Any]:
    return {"choices": (choice,)}
