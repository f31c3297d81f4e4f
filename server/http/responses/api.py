"""POST /v1/responses: one answer to a text or a conversation, nothing stored."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from jaxserve.engine.client import EngineClient
from jaxserve.errors import InvalidRequestError
from jaxserve.types import RequestOptions
from server.http import examples
from server.http.disconnect import until_gone
from server.http.failures import json_response
from server.http.generation import gather
from server.http.headers import TENANT_HEADER, options_of
from server.http.openapi import GENERATING, answer, failures
from server.http.prompts import named_id
from server.http.responses.protocol import ResponsesRequest, conversation
from server.http.responses.replies import Draft, ResponseReply, output_text
from server.http.responses.stream import ResponseStream
from server.http.sse import stream
from server.http.strict_json import StrictJsonRoute
from server.requests import Job, admit, check_not_empty, in_words_of_client, sampling_params, template_arguments
from server.streams import Events, run

router = APIRouter(route_class=StrictJsonRoute)

_NAMES = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "tenant": TENANT_HEADER,
}


@router.post(
    "/v1/responses",
    responses={**answer(ResponseReply, examples.RESPONSE, streamed=examples.RESPONSE_STREAM), **failures(GENERATING)},
    tags=["text"],
)
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Answer a text or a conversation. Nothing is stored, so that each request brings all that was said."""
    client: EngineClient = request.app.state.client
    admit(client, body.model)
    job = await until_gone(request.receive, _job(client, body, options_of(body, request.headers)))
    events = run(client, job)
    draft = Draft(body, job, client.model.name)
    if body.stream:
        streamed = ResponseStream(draft)
        return await stream(request, streamed.frames(events), streamed.failure)
    return json_response(await until_gone(request.receive, _whole(events, draft)))


async def response_reply(client: EngineClient, body: ResponsesRequest, options: RequestOptions) -> ResponseReply:
    """What the endpoint answers to a body that wants no stream. Raises JaxserveError; cancelling aborts."""
    admit(client, body.model)
    job = await _job(client, body, options)
    return await _whole(run(client, job), Draft(body, job, client.model.name))


async def _job(client: EngineClient, body: ResponsesRequest, options: RequestOptions) -> Job:
    check_not_empty(body.input, "input")
    params = sampling_params(client, body.sampling(), _NAMES)
    arguments = template_arguments(
        body.chat_template_kwargs or {}, "chat_template_kwargs", add_generation_prompt=None, continue_final_message=False
    )
    try:
        prompt = await client.render_chat(conversation(body.instructions, body.input), arguments)
    except InvalidRequestError as error:
        raise in_words_of_client(error, _NAMES) from error
    request_id = named_id("resp_", body.request_id)
    return Job(request_id=request_id, prompts=(prompt,), params=params, options=options, names=_NAMES)


async def _whole(events: Events, draft: Draft) -> ResponseReply:
    (answer,), tally = await gather(events, 1)
    return draft.whole(output_text("".join(answer.text), answer.logprobs), answer.reason, tally)
