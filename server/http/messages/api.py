"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Request, Response
from starlette.datastructures import Headers

from jaxserve.engine.client import EngineClient
from jaxserve.errors import JaxserveError
from server.chat.prepare import PreparedChat, prepare_chat
from server.chat.reading import read
from server.http import examples
from server.http.disconnect import until_gone
from server.http.error_bodies import AnthropicErrorBody
from server.http.failures import json_response
from server.http.generation import gather
from server.http.headers import TENANT_HEADER, client_of, context_of, options_of
from server.http.messages.content import content_of
from server.http.messages.protocol import CountTokensRequest, MessagesRequest, PromptFields
from server.http.messages.replies import AnthropicMessageReply, TokenCountReply, stop_reason, usage_of
from server.http.messages.stream import failure_frame, frames
from server.http.openapi import ASKING, GENERATING, answer, failures
from server.http.prompts import tokens_of
from server.http.sse import stream
from server.http.strict_json import StrictJsonRoute
from server.requests import RequestJob, admit, in_words_of_client, named_id, sampling_params
from server.streams import Events, run
from server.structured import Form
from server.tally import Tally
from server.tokenizing import counted

router = APIRouter(route_class=StrictJsonRoute)

_CALL = "toolu_"  # what ids of calls begin with
_NAMES = {"prompt": "messages", "stop": "stop_sequences", "tenant": TENANT_HEADER}


@router.post(
    "/v1/messages",
    responses={
        **answer(AnthropicMessageReply, examples.MESSAGE, streamed=examples.MESSAGE_STREAM),
        **failures(GENERATING, AnthropicErrorBody),
    },
    tags=["text"],
)
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answer a conversation, or go on with its last message."""
    context = context_of(request)
    client = admit(client_of(request), body.model, context)
    job, chat = await until_gone(request.receive, _job(client, body, request.headers))
    events = read(run(client, job, context), partial(chat.reader, id_prefix=_CALL))
    empty: AnthropicMessageReply = {
        "id": job.request_id,
        "type": "message",
        "role": "assistant",
        "model": client.model.name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_of(Tally()),
    }
    if body.stream:
        made = frames(events, empty, omits_thinking=body.omits_thinking())
        return await stream(request, made, partial(failure_frame, path=request.scope["path"]))
    return await until_gone(request.receive, _whole(events, empty, omits_thinking=body.omits_thinking()))


@router.post(
    "/v1/messages/count_tokens",
    responses={**answer(TokenCountReply, {"input_tokens": 16}), **failures(ASKING, AnthropicErrorBody)},
    tags=["tokens"],
)
async def count_tokens(body: CountTokensRequest, request: Request) -> TokenCountReply:
    """Count the tokens of a conversation as the model sees it."""
    context = context_of(request)
    client = admit(client_of(request), body.model, context)
    chat = await until_gone(request.receive, counted(_prepared(client, body, Form(), body.names()), context))
    return {"input_tokens": len(tokens_of(chat.prompt))}


async def _job(client: EngineClient, body: MessagesRequest, headers: Headers) -> tuple[RequestJob, PreparedChat]:
    form = body.form()
    names = {**_NAMES, **body.names(), **form.names}
    params = sampling_params(client, {**body.sampling(), "structured_outputs": form.params}, names)
    options = options_of(body, headers)
    chat = await _prepared(client, body, form, names)
    job = RequestJob(
        request_id=named_id("msg_", body.request_id),
        prompts=(chat.prompt,),
        params=replace(params, structured_outputs=chat.structured_outputs),
        options=replace(options, shows_markup=chat.template is not None),
        names=names,
    )
    return job, chat


async def _prepared(client: EngineClient, body: PromptFields, form: Form, names: Mapping[str, str]) -> PreparedChat:
    try:
        chat = await prepare_chat(client, body.asked(form))
    except JaxserveError as error:
        raise in_words_of_client(error, names) from error
    if body.context_management is not None:
        body.context_management.check(body.messages, len(tokens_of(chat.prompt)))
    return chat


async def _whole(events: Events, empty: AnthropicMessageReply, *, omits_thinking: bool) -> Response:
    (answer,), tally = await gather(events, 1)
    return json_response(
        {
            **empty,
            "content": content_of(answer.parts, omits_thinking=omits_thinking),
            "stop_reason": stop_reason(answer.finish_reason, answer.matched),
            "stop_sequence": answer.matched,
            "usage": usage_of(tally),
        }
    )
