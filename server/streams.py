"""From a Job to one stream of events, whose closing aborts everything it started."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, cast

from jaxserve.engine.calls import AbortRequests
from jaxserve.engine.client import EngineClient
from jaxserve.engine.events import Event, Finished, Started
from jaxserve.errors import CancelledRequestError, JaxserveError
from jaxserve.types import FinishReason, Prompt, RequestOptions
from server.context import RequestContext
from server.gateway.call import Call, JobSize
from server.observe.exchange import Exchange, ObservedRequest
from server.requests import RequestJob, in_words_of_client
from server.tally import Tally

Events = AsyncGenerator[tuple[int, Event], None]
Watched = Callable[[int, str], ObservedRequest]
"""(which prompt, its name) -> what is told of it"""

# Events read ahead of a slow client when several prompts share its stream; the engine's own buffers come on top.
_READ_AHEAD = 16

# Prompts of one request that are tokenized at the same time: those of others are not to wait for all of a long list.
_TOKENIZED_AT_ONCE = 2

_BYTES_A_TOKEN = 4  # of text, about


def run(client: EngineClient, job: RequestJob, context: RequestContext) -> Events:
    """Run the job's prompts side by side: yields (which prompt, event), each prompt's events in order.

    The job runs, and is charged, for the context's call, if it has one. What its tenant may not take now is refused before the
    first event.

    Raises JaxserveError at once for a job that takes too much, then as EngineClient.generate does, and for a sequence that was
    aborted. Closing aborts.
    """
    try:
        client.bounds.check(job.prompts, job.params)
    except JaxserveError as error:
        raise in_words_of_client(error, job.names) from error
    call = context.call
    if call is not None:
        return _charged(call, client, job, context.exchange)
    return _run(client, job, partial(_watched, client, job, context.exchange, defaultdict(Tally)))


async def abort(client: EngineClient, request_id: str, context: RequestContext) -> bool:
    """Abort the request that the caller calls so; False if there is none of the caller's tenant. See EngineClient.abort."""
    call = context.call
    return await client.abort(request_id if call is None else call.engine_id(request_id))


async def abort_named(client: EngineClient, request_ids: Sequence[str], context: RequestContext) -> None:
    """Abort those that the caller calls so of its tenant's requests, whichever front end they came through.

    Raises EngineDeadError.
    """
    call = context.call
    names = list(request_ids) if call is None else [call.engine_id(one) for one in request_ids]
    await client.call(AbortRequests(names))


async def _charged(call: Call, client: EngineClient, job: RequestJob, exchange: Exchange | None) -> Events:
    call.check_model(client.model.names)
    options = call.options(job.options)
    charged = await call.start(job.request_id, client.model.name, options, _size(job))
    error: BaseException | None = None
    try:
        named = replace(job, request_id=call.engine_id(job.request_id), options=options)
        async with aclosing(_run(client, named, partial(_watched, client, named, exchange, charged.tallies))) as events:
            async for which, event in events:
                charged.passed(which, event)
                yield which, event
    except BaseException as failure:
        error = failure
        raise
    finally:
        call.ended(charged, error)


def _size(job: RequestJob) -> JobSize:
    return JobSize(
        prompt_tokens=sum(map(_tokens, job.prompts)),
        prompts=len(job.prompts),
        sequences=job.params.n,
        max_tokens=job.params.max_tokens,
        delivers_output=job.delivers_output,
    )


def _tokens(prompt: Prompt) -> int:
    """Tokens of a prompt; of a text, what those of its bytes usually are."""
    fields: Mapping[str, Any] = prompt if isinstance(prompt, Mapping) else {"prompt": prompt}
    if "prompt_token_ids" in fields:
        return len(fields["prompt_token_ids"])
    return len(fields["prompt"].encode(errors="replace")) // _BYTES_A_TOKEN + 1


def _watched(
    client: EngineClient, job: RequestJob, exchange: Exchange | None, tallies: Mapping[int, Tally], which: int, request_id: str
) -> ObservedRequest:
    one = ObservedRequest(request_id, job.options.tenant, client.model.name, tallies[which])
    if exchange is not None:
        exchange.generations.append(one)
    return one


def _run(client: EngineClient, job: RequestJob, watched: Watched) -> Events:
    if len(job.prompts) > 1:
        return _side_by_side(client, job, watched)
    client.check_room(job.options.tenant, job.params.n)
    return _events(client, job, 0, (job.request_id, job.prompts[0]), watched)


async def _side_by_side(client: EngineClient, job: RequestJob, watched: Watched) -> Events:
    names = [f"{job.request_id}-{which}" for which in range(len(job.prompts))]
    with client.room(job.options.tenant, names, job.params.n):
        async with aclosing(_merged(client, job, names, watched)) as events:
            async for item in events:
                yield item


async def _merged(client: EngineClient, job: RequestJob, names: Sequence[str], watched: Watched) -> Events:
    queue: asyncio.Queue[tuple[int, Event] | Exception | None] = asyncio.Queue(_READ_AHEAD)
    turns = asyncio.Semaphore(_TOKENIZED_AT_ONCE)

    async def pump(which: int) -> None:
        try:
            async with turns:
                prompt = await _tokenized(client, job, which)
            async with aclosing(_events(client, job, which, (names[which], prompt), watched)) as events:
                async for item in events:
                    await queue.put(item)
            await queue.put(None)
        except Exception as error:  # raised again where the events are read
            await queue.put(error)

    pumps = [asyncio.create_task(pump(which)) for which in range(len(names))]
    try:
        running = len(pumps)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _tokenized(client: EngineClient, job: RequestJob, which: int) -> Prompt:
    prompt = job.prompts[which]
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    if not isinstance(text, str):
        return prompt
    try:
        return {"prompt_token_ids": await client.encode(text)}
    except JaxserveError as error:
        raise in_words_of_client(error, job.names) from error


async def _events(client: EngineClient, job: RequestJob, which: int, named: tuple[str, Prompt], watched: Watched) -> Events:
    request_id, prompt = named
    generation, begun = watched(which, request_id), False
    options = replace(job.options, of_list=True) if which else job.options
    try:
        stream = _closable(client.generate(prompt, job.params, request_id=request_id, options=options))
        async with aclosing(stream) as events:
            async for event in events:
                generation.saw(event)
                begun = begun or isinstance(event, Started)
                if isinstance(event, Finished):
                    _check_outcome(client, event, tells_aborted=job.tells_aborted and begun)
                yield which, event
    except JaxserveError as error:
        raise in_words_of_client(_as_sent(error, job.options), job.names) from error


def _as_sent(error: JaxserveError, options: RequestOptions) -> JaxserveError:
    """The same error; a limit that is the server's own is no field of the request."""
    if error.param in ("timeout", "queue_timeout") and getattr(options, error.param) is None:
        return type(error)(error.message, retry_after=error.retry_after)
    return error


def _closable(events: AsyncIterator[Event]) -> AsyncGenerator[Event, None]:
    """The engine's iterator with the `aclose` that its contract promises and its type cannot say."""
    return cast(AsyncGenerator[Event, None], events)


def _check_outcome(client: EngineClient, event: Finished, *, tells_aborted: bool) -> None:
    """Raise for a sequence that did not end by itself: an unfinished text must not look like a finished one."""
    if event.finish_reason is FinishReason.ABORT:
        client.check_health()  # if the engine ends, that is the reason to give
        if not tells_aborted:
            raise CancelledRequestError("the request was aborted")
