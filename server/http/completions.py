"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

from fastapi import APIRouter, Request, Response
from starlette.datastructures import Headers

from jaxserve.engine.client import EngineClient
from jaxserve.engine.events import Delta, Event, Finished, Started
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.types import Prompt
from server.errors import ErrorBody
from server.http.disconnect import until_gone
from server.http.failures import json_response
from server.http.generation import Gathered, events_of, gather, reason_of, stream_frames
from server.http.headers import TENANT_HEADER, options_of
from server.http.logprobs import TextLogprobs, joined, prompt_logprobs
from server.http.protocol import CompletionRequest
from server.http.replies import CompletionChoiceReply, CompletionReply
from server.http.sse import stream
from server.http.strict_json import StrictJsonRoute
from server.requests import Job, admit, check_not_empty, new_id, sampling_params
from server.streams import Events

router = APIRouter(route_class=StrictJsonRoute)

_DEFAULT_MAX_TOKENS = 16  # OpenAI's, for this endpoint only


@router.post(
    "/v1/completions", responses={200: {"model": CompletionReply}, "4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue one text or several."""
    client: EngineClient = request.app.state.client
    admit(client, body.model)
    job, prompts = _job(body, request.headers)
    events = events_of(request, job)
    texts = _Texts(client.tokenizer, body, job, prompts)
    head: dict[str, Any] = {
        "id": job.request_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": client.model.name,
        **body.tier(),
    }
    if body.stream:
        return await stream(request, stream_frames(events, texts.chunks, head, body.stream_options))
    return await until_gone(request.receive, _whole(events, head, texts, job))


def _job(body: CompletionRequest, headers: Headers) -> tuple[Job, list[str | list[int]]]:
    fields = body.sampling()
    if body.max_tokens is None:
        fields["max_tokens"] = _DEFAULT_MAX_TOKENS
    fields["logprobs"] = body.logprobs
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        fields["prompt_logprobs"] = body.logprobs
    params = sampling_params(fields, {})
    prompts = _prompts(body)
    job = Job(
        request_id=new_id("cmpl"),
        prompts=tuple(_engine_prompt(prompt) for prompt in prompts),
        params=params,
        options=options_of(body, headers),
        names={"tenant": TENANT_HEADER},
    )
    return job, prompts


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    """The prompts, of which the field may hold one or several."""
    given = body.prompt
    check_not_empty(given, "prompt")
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        return [given]
    several = cast(list[str | list[int]], given)
    for index, prompt in enumerate(several):
        check_not_empty(prompt, f"prompt[{index}]")
    return several


def _engine_prompt(prompt: str | list[int]) -> Prompt:
    return prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt}


async def _whole(events: Events, head: dict[str, Any], texts: _Texts, job: Job) -> Response:
    gathered, tally = await gather(events, job.params.n)
    reply: CompletionReply = {
        **head,  # type: ignore[typeddict-item]
        "choices": [texts.whole(index, one) for index, one in enumerate(gathered)],
        "usage": tally.reply(),
    }
    return json_response(reply)


class _Texts:
    """Turns sequences, whole or event by event, into choices; knows what to echo before each."""

    def __init__(self, tokenizer: Tokenizer, body: CompletionRequest, job: Job, prompts: Sequence[str | list[int]]) -> None:
        self._tokenizer = tokenizer
        self._body = body
        self._skips_special = job.params.skip_special_tokens
        self._sequences = job.params.n
        self._prompts = prompts
        self._logprobs: dict[int, TextLogprobs] = {}

    def whole(self, index: int, one: Gathered) -> CompletionChoiceReply:
        """A finished choice."""
        choice = self._opening(index, one.started)
        choice["text"] += "".join(one.text)
        choice["finish_reason"] = one.reason
        if self._body.logprobs is not None:
            output = self._logprobs[index].output(one.logprobs)
            choice["logprobs"] = output if choice["logprobs"] is None else joined(choice["logprobs"], output)
        return choice

    def chunks(self, which: int, event: Event) -> Sequence[CompletionChoiceReply]:
        """What an event adds to the choices."""
        first = which * self._sequences
        if isinstance(event, Started):
            opened = [self._opening(index, event) for index in range(first, first + self._sequences)]
            return [choice for choice in opened if choice["text"] or "prompt_logprobs" in choice]
        index = first + event.index
        if isinstance(event, Finished):
            return [{"index": index, "text": "", "logprobs": None, "finish_reason": reason_of(event)}]
        return self._addition(index, event)

    def _addition(self, index: int, event: Delta) -> Sequence[CompletionChoiceReply]:
        if not event.text and event.logprobs is None:
            return ()  # text held back: there is nothing to say yet
        logprobs = None if event.logprobs is None else self._logprobs[index].output(event.logprobs)
        return [{"index": index, "text": event.text, "logprobs": logprobs, "finish_reason": None}]

    def _opening(self, index: int, started: Started) -> CompletionChoiceReply:
        """A choice before its first token: the echoed prompt, or nothing."""
        choice: CompletionChoiceReply = {"index": index, "text": "", "logprobs": None, "finish_reason": None}
        if self._body.logprobs is not None:
            self._logprobs[index] = TextLogprobs(self._tokenizer, skip_special_tokens=self._skips_special)
        if self._body.echo:
            choice["text"] = self._echo(index)
            if self._body.logprobs is not None:
                choice["logprobs"] = self._logprobs[index].prompt(started)
        if self._body.prompt_logprobs is not None:
            assert started.prompt_logprobs is not None
            choice["prompt_logprobs"] = prompt_logprobs(started.prompt_logprobs)
        return choice

    def _echo(self, index: int) -> str:
        prompt = self._prompts[index // self._sequences]
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.decode(prompt, skip_special_tokens=self._skips_special)
