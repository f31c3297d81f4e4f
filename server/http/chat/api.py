"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from jaxserve.engine.client import EngineClient
from jaxserve.engine.events import Event, Finished, Started
from jaxserve.errors import JaxserveError
from jaxserve.types import RequestOptions
from server.chat.asked import AskedChat
from server.chat.prepare import PreparedChat, prepare_chat
from server.chat.reading import read
from server.context import RequestContext
from server.events import ReadDelta
from server.http import examples
from server.http.chat.messages import delta_reply, message_reply
from server.http.conversation import plain
from server.http.disconnect import until_gone
from server.http.failures import pieces_response
from server.http.generation import Gathered, encoded, gather, head_of, reason_of, stream_frames, usage_reply, versions_of, written
from server.http.headers import TENANT_HEADER, client_of, context_of, options_of
from server.http.logprobs import chat_logprobs, prompt_logprobs
from server.http.openapi import GENERATING, answer, failures
from server.http.prompts import cut, tokens_of
from server.http.protocol import ChatRequest
from server.http.replies import ChatChoiceReply, ChatChunkChoiceReply, ChatReply
from server.http.sse import stream
from server.http.strict_json import StrictJsonRoute
from server.requests import RequestJob, admit, check_not_empty, in_words_of_client, named_id, sampling_params, template_arguments
from server.streams import Events, run

router = APIRouter(route_class=StrictJsonRoute)


@router.post(
    "/v1/chat/completions",
    responses={**answer(ChatReply, examples.CHAT, streamed=examples.CHAT_STREAM), **failures(GENERATING)},
    tags=["text"],
)
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    context = context_of(request)
    client = admit(client_of(request), body.model, context)
    job, chat = await until_gone(request.receive, _job(client, body, options_of(body, request.headers)))
    events = read(run(client, job, context), chat.reader)
    if body.stream:
        head = head_of(client.model, body, job, "chat.completion.chunk")
        return await stream(request, stream_frames(client, events, _Chunks(body, job), head, body.stream_options))
    return await until_gone(request.receive, _answer(client, events, body, job))


async def chat_reply(client: EngineClient, body: ChatRequest, options: RequestOptions, context: RequestContext) -> ChatReply:
    """What the endpoint answers to a body that wants no stream. Raises JaxserveError; cancelling aborts."""
    client = admit(client, body.model, context)
    job, chat = await _job(client, body, options)
    return await _whole(client, read(run(client, job, context), chat.reader), body, job)


async def _job(client: EngineClient, body: ChatRequest, options: RequestOptions) -> tuple[RequestJob, PreparedChat]:
    check_not_empty(body.messages, "messages")
    names = {"prompt": "messages", "logprobs": "top_logprobs", "tenant": TENANT_HEADER}
    form = body.form()
    fields = {**body.sampling(), "structured_outputs": form.params}
    names |= form.names
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
    asked = AskedChat(
        messages=plain(body.messages), arguments=arguments, tools=body.asked_tools(), thinking=body.asked_thinking(), form=form
    )
    names["max_thinking_tokens"] = asked.thinking.param
    try:
        chat = await prepare_chat(client, asked)
    except JaxserveError as error:
        raise in_words_of_client(error, names) from error
    prompt = chat.prompt
    if body.truncate_prompt_tokens is not None:
        prompt = {"prompt_token_ids": cut(client, tokens_of(prompt), body.truncate_prompt_tokens, params.max_tokens)}
    job = RequestJob(
        request_id=named_id("chatcmpl-", body.request_id),
        prompts=(prompt,),
        params=replace(params, structured_outputs=chat.structured_outputs),
        options=replace(options, shows_markup=chat.template is not None),
        names=names,
    )
    return job, chat


async def _answer(client: EngineClient, events: Events, body: ChatRequest, job: RequestJob) -> Response:
    choices, started, tally = await encoded(client, events, job.params.n, lambda index, one: _choice(index, one, body))
    tail = {"usage": await written(client, partial(usage_reply, tally), 0)}
    if body.return_token_ids:
        tail["prompt_token_ids"] = await written(client, partial(list, started.prompt_token_ids), 0)
    scores = started.prompt_logprobs
    if scores is not None:
        tail["prompt_logprobs"] = await written(client, partial(prompt_logprobs, scores), len(scores))
    return pieces_response(head_of(client.model, body, job, "chat.completion"), choices, tail)


async def _whole(client: EngineClient, events: Events, body: ChatRequest, job: RequestJob) -> ChatReply:
    gathered, tally = await gather(events, job.params.n)
    reply: ChatReply = {
        **head_of(client.model, body, job, "chat.completion"),  # type: ignore[typeddict-item]
        "choices": [_choice(index, one, body) for index, one in enumerate(gathered)],
        "usage": usage_reply(tally),
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
        "message": message_reply(one.parts),
        "logprobs": chat_logprobs(one.logprobs, as_ids=bool(body.return_tokens_as_token_ids)) if body.with_logprobs() else None,
        "finish_reason": one.finish_reason,
    }
    if body.return_token_ids:
        choice["token_ids"] = one.token_ids
    return {**choice, **one.versions}


class _Chunks:
    """Turns events into what each adds to a chunk."""

    def __init__(self, body: ChatRequest, job: RequestJob) -> None:
        self._sequences = job.params.n
        self._as_ids = bool(body.return_tokens_as_token_ids)
        self._with_ids = bool(body.return_token_ids)

    def __call__(self, which: int, event: Event) -> Sequence[Mapping[str, Any]]:
        if isinstance(event, Started):
            return [self._opening(index, event) for index in range(self._sequences)]
        if isinstance(event, Finished):
            end: ChatChunkChoiceReply = {
                "index": event.index,
                "delta": {},
                "logprobs": None,
                "finish_reason": reason_of(event),
            }
            return [_chunk({**end, **versions_of(event)})]
        assert isinstance(event, ReadDelta), "events of chats are read"
        return self._additions(event)

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

    def _additions(self, event: ReadDelta) -> Sequence[Mapping[str, Any]]:
        """One chunk for each part of the message; the first tells of the tokens."""
        tells_of_tokens = bool(event.token_ids) and (event.logprobs is not None or self._with_ids)
        deltas = [delta for part in event.parts if (delta := delta_reply(part)) is not None]
        if not deltas and tells_of_tokens:
            deltas.append({"content": ""})  # text held back: the tokens are there all the same
        chunks = []
        for place, delta in enumerate(deltas):
            choice: ChatChunkChoiceReply = {"index": event.index, "delta": delta, "logprobs": None, "finish_reason": None}
            if place == 0 and event.logprobs is not None:
                choice["logprobs"] = chat_logprobs(event.logprobs, as_ids=self._as_ids)
            if place == 0 and self._with_ids:
                choice["token_ids"] = list(event.token_ids)
            chunks.append(_chunk(choice))
        return chunks


def _chunk(choice: ChatChunkChoiceReply) -> Mapping[str, Any]:
    return {"choices": (choice,)}
