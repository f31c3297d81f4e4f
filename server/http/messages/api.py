"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response
from starlette.datastructures import Headers

from jaxserve.engine.client import EngineClient
from jaxserve.types import Prompt
from server.http import examples
from server.http.disconnect import until_gone
from server.http.error_bodies import AnthropicErrorBody
from server.http.failures import json_response
from server.http.generation import Tally, gather
from server.http.headers import TENANT_HEADER, options_of
from server.http.messages.protocol import CountTokensRequest, MessagesRequest, conversation
from server.http.messages.replies import AnthropicMessageReply, TokenCountReply, stop_reason, usage_of
from server.http.messages.stream import failure_frame, frames
from server.http.openapi import ASKING, GENERATING, answer, failures
from server.http.prompts import named_id, tokens_of
from server.http.sse import stream
from server.http.strict_json import StrictJsonRoute
from server.requests import Job, admit, check_not_empty, sampling_params, template_arguments
from server.streams import Events, run
from server.tokenizing import counted

router = APIRouter(route_class=StrictJsonRoute)

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
    client: EngineClient = request.app.state.client
    admit(client, body.model)
    job = await until_gone(request.receive, _job(client, body, request.headers))
    events = run(client, job)
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
        return await stream(request, frames(events, empty), partial(failure_frame, path=request.scope["path"]))
    return await until_gone(request.receive, _whole(events, empty))


@router.post(
    "/v1/messages/count_tokens",
    responses={**answer(TokenCountReply, {"input_tokens": 16}), **failures(ASKING, AnthropicErrorBody)},
    tags=["tokens"],
)
async def count_tokens(body: CountTokensRequest, request: Request) -> TokenCountReply:
    """Count the tokens of a conversation as the model sees it."""
    client: EngineClient = request.app.state.client
    admit(client, body.model)
    prompt = await until_gone(request.receive, counted(_rendered(client, body)))
    return {"input_tokens": len(tokens_of(prompt))}


async def _job(client: EngineClient, body: MessagesRequest, headers: Headers) -> Job:
    params = sampling_params(client, body.sampling(), _NAMES)
    options = options_of(body, headers)
    prompt = await _rendered(client, body)
    request_id = named_id("msg_", body.request_id)
    return Job(request_id=request_id, prompts=(prompt,), params=params, options=options, names=_NAMES)


async def _rendered(client: EngineClient, body: MessagesRequest | CountTokensRequest) -> Prompt:
    check_not_empty(body.messages, "messages")
    goes_on = body.messages[-1].role == "assistant"
    arguments = template_arguments({}, "", add_generation_prompt=None, continue_final_message=goes_on)
    return await client.render_chat(conversation(body.system, body.messages), arguments)


async def _whole(events: Events, empty: AnthropicMessageReply) -> Response:
    (answer,), tally = await gather(events, 1)
    return json_response(
        {
            **empty,
            "content": [{"type": "text", "text": "".join(answer.text)}],
            "stop_reason": stop_reason(answer.reason, answer.matched),
            "stop_sequence": answer.matched,
            "usage": usage_of(tally),
        }
    )
