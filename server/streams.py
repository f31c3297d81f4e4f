"""From a Job to one stream of events, whose closing aborts everything it started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from jaxserve.engine.client import EngineClient
from jaxserve.engine.events import Event, Finished
from jaxserve.errors import CancelledRequestError, JaxserveError
from jaxserve.types import FinishReason, Prompt
from server.requests import Job, in_words_of_client

Events = AsyncGenerator[tuple[int, Event], None]

# Events read ahead of a slow client when several prompts share its stream; the engine's own buffers come on top.
_READ_AHEAD = 16


async def run(client: EngineClient, job: Job) -> Events:
    """Run the job's prompts side by side: yields (which prompt, event), each prompt's events in order.

    Raises JaxserveError as EngineClient.generate does, and for a sequence that was aborted. Closing aborts.
    """
    if len(job.prompts) == 1:
        async with aclosing(_events(client, job, job.prompts[0], job.request_id)) as events:
            async for event in events:
                yield 0, event
        return
    queue: asyncio.Queue[tuple[int, Event] | Exception | None] = asyncio.Queue(_READ_AHEAD)

    async def pump(which: int, prompt: Prompt) -> None:
        try:
            async with aclosing(_events(client, job, prompt, f"{job.request_id}-{which}")) as events:
                async for event in events:
                    await queue.put((which, event))
            await queue.put(None)
        except Exception as error:  # raised again where the events are read
            await queue.put(error)

    pumps = [asyncio.create_task(pump(which, prompt)) for which, prompt in enumerate(job.prompts)]
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


async def _events(client: EngineClient, job: Job, prompt: Prompt, request_id: str) -> AsyncGenerator[Event, None]:
    try:
        stream = _closable(client.generate(prompt, job.params, request_id=request_id, options=job.options))
        async with aclosing(stream) as events:
            async for event in events:
                if isinstance(event, Finished):
                    _check_outcome(client, event)
                yield event
    except JaxserveError as error:
        raise in_words_of_client(error, job.names) from error


def _closable(events: AsyncIterator[Event]) -> AsyncGenerator[Event, None]:
    """The engine's iterator with the `aclose` that its contract promises and its type cannot say."""
    return cast(AsyncGenerator[Event, None], events)


def _check_outcome(client: EngineClient, event: Finished) -> None:
    """Raise for a sequence that did not end by itself: an unfinished text must not look like a finished one."""
    if event.reason is FinishReason.ABORT:
        client.check_health()  # if the engine ends, that is the reason to give
        raise CancelledRequestError("the request was aborted")
