"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.datastructures import Headers

from jaxserve.engine.client import EngineClient
from jaxserve.engine.events import Delta, Event, Finished, Started
from jaxserve.types import ChatMessage
from server.errors import ErrorBody
from server.http.disconnect import until_gone
from server.http.failures import json_response
from server.http.generation import Gathered, events_of, gather, reason_of, stream_frames
from server.http.headers import TENANT_HEADER, options_of
from server.http.logprobs import chat_logprobs, prompt_logprobs
from server.http.protocol import ChatRequest
from server.http.protocol import Message as MessageField
from server.http.replies import ChatChoiceReply, ChatChunkChoiceReply, ChatReply
from server.http.sse import stream
from server.http.strict_json import StrictJsonRoute
from server.requests import Job, admit, check_not_empty, new_id, sampling_params, template_arguments
from server.streams import Events

router = APIRouter(route_class=StrictJsonRoute)


@router.post(
    "/v1/chat/completions", responses={200: {"model": ChatReply}, "4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
)
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    client: EngineClient = request.app.state.client
    admit(client, body.model)
    job = await _job(client, body, request.headers)
    events = events_of(request, job)
    head: dict[str, Any] = {
        "id": job.request_id,
        "object": "chat.completion.chunk" if body.stream else "chat.completion",
        "created": int(time.time()),
        "model": client.model.name,
        **body.tier(),
    }
    if body.stream:
        choices = _Chunks(job.params.n)
        return await stream(request, stream_frames(events, choices, head, body.stream_options))
    return await until_gone(request.receive, _whole(events, head, body, job))


async def _job(client: EngineClient, body: ChatRequest, headers: Headers) -> Job:
    check_not_empty(body.messages, "messages")
    names = {"prompt": "messages", "logprobs": "top_logprobs", "tenant": TENANT_HEADER}
    fields = body.sampling()
    if body.max_completion_tokens is not None:
        fields["max_tokens"] = body.max_completion_tokens
        names["max_tokens"] = "max_completion_tokens"
    if body.logprobs:
        fields["logprobs"] = body.top_logprobs or 0
    params = sampling_params(fields, names)
    options = options_of(body, headers)
    arguments = template_arguments(
        body.chat_template_kwargs or {},
        "chat_template_kwargs",
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
    )
    prompt = await client.render_chat([_message(message) for message in body.messages], arguments)
    return Job(request_id=new_id("chatcmpl"), prompts=(prompt,), params=params, options=options, names=names)


def _message(message: MessageField) -> ChatMessage:
    plain: ChatMessage = {"role": message.role, "content": message.text()}
    if message.name is not None:
        plain["name"] = message.name
    return plain


async def _whole(events: Events, head: dict[str, Any], body: ChatRequest, job: Job) -> Response:
    gathered, tally = await gather(events, job.params.n)
    reply: ChatReply = {
        **head,  # type: ignore[typeddict-item]
        "choices": [_choice(index, one, with_logprobs=bool(body.logprobs)) for index, one in enumerate(gathered)],
        "usage": tally.reply(),
    }
    positions = gathered[0].started.prompt_logprobs
    if positions is not None:
        reply["prompt_logprobs"] = prompt_logprobs(positions)
    return json_response(reply)


def _choice(index: int, one: Gathered, *, with_logprobs: bool) -> ChatChoiceReply:
    return {
        "index": index,
        "message": {"role": "assistant", "content": "".join(one.text), "refusal": None},
        "logprobs": chat_logprobs(one.logprobs) if with_logprobs else None,
        "finish_reason": one.reason,
    }


class _Chunks:
    """Turns events into what each adds to the choices."""

    def __init__(self, sequences: int) -> None:
        self._sequences = sequences

    def __call__(self, which: int, event: Event) -> Sequence[ChatChunkChoiceReply]:
        if isinstance(event, Started):
            return [self._opening(index, event) for index in range(self._sequences)]
        if isinstance(event, Finished):
            return [{"index": event.index, "delta": {}, "logprobs": None, "finish_reason": reason_of(event)}]
        return self._addition(event)

    def _opening(self, index: int, event: Started) -> ChatChunkChoiceReply:
        choice: ChatChunkChoiceReply = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        if event.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(event.prompt_logprobs)
        return choice

    def _addition(self, event: Delta) -> Sequence[ChatChunkChoiceReply]:
        if not event.text and event.logprobs is None:
            return ()  # text held back: there is nothing to say yet
        logprobs = None if event.logprobs is None else chat_logprobs(event.logprobs)
        return [{"index": event.index, "delta": {"content": event.text}, "logprobs": logprobs, "finish_reason": None}]
