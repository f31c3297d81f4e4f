"""POST /v1/responses: one answer to a text or a conversation, nothing stored."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from fastapi import APIRouter, Request, Response

from jaxserve.engine.client import EngineClient
from jaxserve.engine.events import Finished
from jaxserve.errors import JaxserveError
from jaxserve.types import RequestOptions
from server.chat.asked import AskedChat
from server.chat.prepare import PreparedChat, prepare_chat
from server.chat.reading import read
from server.context import RequestContext
from server.events import ReadDelta
from server.http import examples
from server.http.disconnect import until_gone
from server.http.failures import json_response
from server.http.generation import reason_of
from server.http.headers import TENANT_HEADER, client_of, context_of, options_of
from server.http.openapi import GENERATING, answer, failures
from server.http.replies import Reason
from server.http.responses.items import conversation
from server.http.responses.output import Output
from server.http.responses.protocol import ResponsesRequest
from server.http.responses.replies import Draft, ResponseReply
from server.http.responses.stream import ResponseStream
from server.http.sse import stream
from server.http.strict_json import StrictJsonRoute
from server.requests import RequestJob, admit, check_not_empty, in_words_of_client, named_id, sampling_params, template_arguments
from server.streams import Events, run
from server.tally import Tally

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
    context = context_of(request)
    client = admit(client_of(request), body.model, context)
    job, chat = await until_gone(request.receive, _job(client, body, options_of(body, request.headers)))
    events = read(run(client, job, context), chat.reader)
    draft = Draft(body, job, client.model.name)
    if body.stream:
        streamed = ResponseStream(draft)
        return await stream(request, streamed.frames(events), streamed.failure)
    return json_response(await until_gone(request.receive, _whole(events, draft)))


async def response_reply(
    client: EngineClient, body: ResponsesRequest, options: RequestOptions, context: RequestContext
) -> ResponseReply:
    """What the endpoint answers to a body that wants no stream. Raises JaxserveError; cancelling aborts."""
    client = admit(client, body.model, context)
    job, chat = await _job(client, body, options)
    events = read(run(client, job, context), chat.reader)
    return await _whole(events, Draft(body, job, client.model.name))


async def _job(client: EngineClient, body: ResponsesRequest, options: RequestOptions) -> tuple[RequestJob, PreparedChat]:
    check_not_empty(body.input, "input")
    form = body.form()
    names = {**_NAMES, **form.names, **body.tool_names()}
    params = sampling_params(client, {**body.sampling(), "structured_outputs": form.params}, names)
    arguments = template_arguments(
        body.chat_template_kwargs or {}, "chat_template_kwargs", add_generation_prompt=None, continue_final_message=False
    )
    asked = AskedChat(
        messages=conversation(body.instructions, body.input),
        arguments=arguments,
        tools=body.asked_tools(),
        thinking=body.asked_thinking(),
        form=form,
        folds_system=True,
    )
    try:
        chat = await prepare_chat(client, asked)
    except JaxserveError as error:
        raise in_words_of_client(error, names) from error
    job = RequestJob(
        request_id=named_id("resp_", body.request_id),
        prompts=(chat.prompt,),
        params=replace(params, structured_outputs=chat.structured_outputs),
        options=replace(options, shows_markup=chat.template is not None),
        names=names,
    )
    return job, chat


async def _whole(events: Events, draft: Draft) -> ResponseReply:
    output, tally = Output(draft.name), Tally()
    reason: Reason = "stop"
    async with aclosing(events):
        async for _, event in events:
            tally.add(event)
            if isinstance(event, ReadDelta):
                for _ in output.add(event):
                    pass
            elif isinstance(event, Finished):
                reason = reason_of(event)
                for _ in output.finish(reason):
                    pass
    return draft.whole(output.replies(was_streamed=False), reason, tally)
