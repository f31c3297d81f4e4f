"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from jaxserve.engine.client import EngineClient
from jaxserve.engine.events import Delta, Event, Finished, Started
from jaxserve.sampling.params import SamplingParams
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.types import RequestOptions
from server.context import RequestContext
from server.http import examples
from server.http.disconnect import until_gone
from server.http.failures import pieces_response
from server.http.generation import (
    Gathered,
    encoded,
    gather,
    head_of,
    reason_of,
    stream_frames,
    usage_reply,
    versions_of,
    without_output,
    written,
)
from server.http.headers import TENANT_HEADER, client_of, context_of, options_of
from server.http.logprobs import TextLogprobs, joined, prompt_logprobs
from server.http.openapi import GENERATING, answer, failures
from server.http.prompts import cut, prompts_in, tokenized
from server.http.protocol import CompletionRequest
from server.http.replies import CompletionChoiceReply, CompletionReply
from server.http.sse import stream
from server.http.strict_json import StrictJsonRoute
from server.requests import RequestJob, TextOrIds, admit, engine_prompt, named_id, sampling_params
from server.streams import Events, run
from server.structured import Form

router = APIRouter(route_class=StrictJsonRoute)

_DEFAULT_MAX_TOKENS = 16  # OpenAI's, for this endpoint only
_OF_PROMPT = frozenset({"prompt_logprobs", "prompt_token_ids"})  # worth a chunk of their own


@router.post(
    "/v1/completions",
    responses={**answer(CompletionReply, examples.COMPLETION, streamed=examples.COMPLETION_STREAM), **failures(GENERATING)},
    tags=["text"],
)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue one text or several."""
    context = context_of(request)
    client = admit(client_of(request), body.model, context)
    work = await until_gone(request.receive, _work(client, body, options_of(body, request.headers), context))
    if body.stream:
        return await stream(request, stream_frames(client, work.events, work.texts.chunks, work.head, body.stream_options))
    return await until_gone(request.receive, _answer(client, work))


async def completion_reply(
    client: EngineClient, body: CompletionRequest, options: RequestOptions, context: RequestContext
) -> CompletionReply:
    """What the endpoint answers to a body that wants no stream. Raises JaxserveError; cancelling aborts."""
    client = admit(client, body.model, context)
    return await _whole(await _work(client, body, options, context))


@dataclass(frozen=True, slots=True)
class _Work:
    """A request on its way: its events, what makes choices of them, and what its answer, or each chunk of it, begins with."""

    job: RequestJob
    events: Events
    texts: _Texts
    head: Mapping[str, Any]


async def _work(client: EngineClient, body: CompletionRequest, options: RequestOptions, context: RequestContext) -> _Work:
    given = prompts_in(body.prompt)
    form = body.form()
    params = _params(client, body, form, len(given))
    prompts = await _prompts(client, body, given)
    job = _job(body, prompts, params, options, {"tenant": TENANT_HEADER, **form.names})
    events = run(client, job, context)
    if _echoes_only(body):
        events = without_output(events)
    head = head_of(client.model, body, job, "text_completion")
    return _Work(job, events, _Texts(client.tokenizer, body, job, prompts), head)


def _params(client: EngineClient, body: CompletionRequest, form: Form, prompts: int) -> SamplingParams:
    fields = {**body.sampling(), "structured_outputs": form.params}
    if body.max_tokens is None:
        fields["max_tokens"] = _DEFAULT_MAX_TOKENS
    elif _echoes_only(body):
        fields["max_tokens"] = 1  # the least that the engine makes
    fields["logprobs"] = body.logprobs
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        fields["prompt_logprobs"] = body.logprobs
    return sampling_params(client, fields, form.names, prompts=prompts)


def _job(
    body: CompletionRequest,
    prompts: Sequence[TextOrIds],
    params: SamplingParams,
    options: RequestOptions,
    names: Mapping[str, str],
) -> RequestJob:
    return RequestJob(
        request_id=named_id("cmpl-", body.request_id),
        prompts=tuple(engine_prompt(prompt) for prompt in prompts),
        params=params,
        options=options,
        names=names,
        delivers_output=not _echoes_only(body),
    )


def _echoes_only(body: CompletionRequest) -> bool:
    """Whether the prompt is all that is wanted, as where log-probabilities of a text are asked for."""
    return bool(body.echo) and body.max_tokens == 0


async def _prompts(client: EngineClient, body: CompletionRequest, prompts: list[TextOrIds]) -> list[TextOrIds]:
    """The prompts, tokenized here where the body says how."""
    limit = body.truncate_prompt_tokens
    with_special = body.add_special_tokens is not False
    if with_special and limit is None:
        return prompts
    output = _DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if limit is None:
        for prompt in prompts:  # all of them before the first is tokenized
            client.bounds.check_prompt(engine_prompt(prompt))
        return [await tokenized(client, prompt, add_special_tokens=with_special) for prompt in prompts]
    return [
        cut(client, await tokenized(client, prompt, add_special_tokens=with_special, truncates=True), limit, output)
        for prompt in prompts
    ]


async def _answer(client: EngineClient, work: _Work) -> Response:
    choices, _, tally = await encoded(client, work.events, work.job.params.n, work.texts.whole)
    return pieces_response(work.head, choices, {"usage": await written(client, partial(usage_reply, tally), 0)})


async def _whole(work: _Work) -> CompletionReply:
    gathered, tally = await gather(work.events, work.job.params.n)
    return {
        **work.head,  # type: ignore[typeddict-item]
        "choices": [work.texts.whole(index, one) for index, one in enumerate(gathered)],
        "usage": usage_reply(tally),
    }


class _Texts:
    """Turns sequences, whole or event by event, into choices; knows what to echo before each."""

    def __init__(self, tokenizer: Tokenizer, body: CompletionRequest, job: RequestJob, prompts: Sequence[TextOrIds]) -> None:
        self._tokenizer = tokenizer
        self._body = body
        self._as_ids = bool(body.return_tokens_as_token_ids)
        self._with_ids = bool(body.return_token_ids)
        self._skips_special = body.skip_special_tokens is not False
        self._sequences = job.params.n
        self._prompts = prompts
        self._logprobs: dict[int, TextLogprobs] = {}

    def whole(self, index: int, one: Gathered) -> CompletionChoiceReply:
        choice = self._opening(index, one.started)
        choice["text"] += "".join(one.text)
        choice["finish_reason"] = one.finish_reason
        if self._body.logprobs is not None:
            output = self._logprobs[index].output(one.logprobs)
            choice["logprobs"] = output if choice["logprobs"] is None else joined(choice["logprobs"], output)
        if self._with_ids:
            choice["token_ids"] = one.token_ids
        return {**choice, **one.versions}

    def chunks(self, which: int, event: Event) -> Sequence[Mapping[str, Any]]:
        first = which * self._sequences
        if isinstance(event, Started):
            opened = [self._opening(index, event) for index in range(first, first + self._sequences)]
            return [_chunk(choice) for choice in opened if choice["text"] or choice.keys() & _OF_PROMPT]
        index = first + event.index
        if isinstance(event, Finished):
            end: CompletionChoiceReply = {"index": index, "text": "", "logprobs": None, "finish_reason": reason_of(event)}
            return [_chunk({**end, **versions_of(event)})]
        return self._addition(index, event)

    def _addition(self, index: int, event: Delta) -> Sequence[Mapping[str, Any]]:
        if not event.text and event.logprobs is None and not self._with_ids:
            return ()  # text held back: there is nothing to say yet
        logprobs = None if event.logprobs is None else self._logprobs[index].output(event.logprobs)
        choice: CompletionChoiceReply = {"index": index, "text": event.text, "logprobs": logprobs, "finish_reason": None}
        if self._with_ids:
            choice["token_ids"] = list(event.token_ids)
        return (_chunk(choice),)

    def _opening(self, index: int, started: Started) -> CompletionChoiceReply:
        """A choice before its first token: the echoed prompt, or nothing."""
        choice: CompletionChoiceReply = {"index": index, "text": "", "logprobs": None, "finish_reason": None}
        if self._body.logprobs is not None:
            self._logprobs[index] = TextLogprobs(self._tokenizer, skip_special_tokens=self._skips_special, as_ids=self._as_ids)
        if self._body.echo:
            choice["text"] = self._echo(index)
            if self._body.logprobs is not None:
                choice["logprobs"] = self._logprobs[index].prompt(started)
        if self._body.prompt_logprobs is not None:
            assert started.prompt_logprobs is not None
            choice["prompt_logprobs"] = prompt_logprobs(started.prompt_logprobs)
        if self._with_ids:
            choice["prompt_token_ids"] = list(started.prompt_token_ids)
        return choice

    def _echo(self, index: int) -> str:
        prompt = self._prompts[index // self._sequences]
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.decode(prompt, skip_special_tokens=self._skips_special)


def _chunk(choice: CompletionChoiceReply) -> Mapping[str, Any]:
    return {"choices": (choice,)}
