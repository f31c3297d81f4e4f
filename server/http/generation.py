"""What chat and text completions share: gathering events into whole sequences, streaming them, counting tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import msgspec

from jaxserve.chat_parsing import Delta as Part
from jaxserve.engine.client import EngineClient, ModelInfo
from jaxserve.engine.events import Delta, Event, Finished, PositionLogprobs, Started
from jaxserve.types import FinishReason
from server.events import ReadDelta, ReadFinished
from server.http.fields import EngineFields, StreamOptions
from server.http.replies import Reason, UsageReply, VersionsReply
from server.http.sse import DONE
from server.requests import RequestJob
from server.streams import Events
from server.tally import Tally

MANY_POSITIONS = 64  # with log-probabilities: writing so many takes longer than going to a thread for it

_encode = msgspec.json.Encoder().encode

_FINGERPRINT = 16  # of its letters: enough to tell models apart


@dataclass(slots=True)
class Gathered:
    """One whole sequence; `matched` is the stop string that ended it, `parts` what its text was read as, if it was; `versions`
    tells of the weights.
    """

    started: Started
    text: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: Reason = "stop"
    matched: str | None = None
    versions: VersionsReply = field(default_factory=VersionsReply)

    def add(self, event: Delta | Finished) -> None:
        if isinstance(event, Delta):
            self.text.append(event.text)
            self.token_ids.extend(event.token_ids)
            self.logprobs.extend(event.logprobs or ())
            if isinstance(event, ReadDelta):
                self.parts.extend(event.parts)
        else:
            self.finish_reason = reason_of(event)
            self.matched = matched_text(event)
            self.versions = versions_of(event)


def usage_reply(tally: Tally) -> UsageReply:
    usage: UsageReply = {
        "prompt_tokens": tally.prompt,
        "completion_tokens": tally.completion,
        "total_tokens": tally.prompt + tally.completion,
        "prompt_tokens_details": {"cached_tokens": tally.cached},
    }
    if tally.reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": tally.reasoning}
    if tally.resumed:
        usage["resumed"] = tally.resumed
    return usage


def head_of(model: ModelInfo, body: EngineFields, job: RequestJob, kind: str) -> dict[str, Any]:
    """What an answer, or each chunk of one, begins with. The same system_fingerprint means the same weights and configuration."""
    return {
        "id": job.request_id,
        "object": kind,
        "created": int(time.time()),
        "model": model.name,
        "system_fingerprint": f"fp_{model.fingerprint[:_FINGERPRINT]}" if model.fingerprint else None,
        **body.tier(),
    }


def reason_of(event: Finished) -> Reason:
    """finish_reason; what did not end by itself has become an error before it gets here."""
    if isinstance(event, ReadFinished) and event.called:
        return "tool_calls"
    return cast(Reason, event.finish_reason.value)


def versions_of(event: Finished) -> VersionsReply:
    """The versions of the weights that a sequence's tokens are of, as a part of its choice; nothing if they have none."""
    if event.weight_versions is None:
        return {}
    return {"weight_versions": [{"version": one.version, "start": one.start, "end": one.end} for one in event.weight_versions]}


def matched_text(event: Finished) -> str | None:
    """The stop string that ended the sequence, if one did."""
    return event.matched if isinstance(event.matched, str) else None


async def without_output(events: Events) -> Events:
    """The same without the tokens that came: as if none had been made."""
    async with aclosing(events):
        async for which, event in events:
            if isinstance(event, Finished):
                yield which, replace(event, finish_reason=FinishReason.LENGTH, matched=None, weight_versions=None)
            elif not isinstance(event, Delta):
                yield which, event


async def gather(events: Events, sequences: int) -> tuple[list[Gathered], Tally]:
    """Every sequence of the job, ordered by prompt, then by index; `sequences` is how many a prompt has."""
    tally = Tally()
    gathered: dict[int, Gathered] = {}
    async with aclosing(events):
        async for which, event in events:
            tally.add(event)
            if isinstance(event, Started):
                for index in range(sequences):
                    gathered[which * sequences + index] = Gathered(event)
                continue
            gathered[which * sequences + event.index].add(event)
    return [gathered[index] for index in sorted(gathered)], tally


async def encoded(
    client: EngineClient, events: Events, sequences: int, choice: Callable[[int, Gathered], Any]
) -> tuple[list[bytes], Started, Tally]:
    """The JSON of the choice that every sequence of the job makes, in the order of `gather`; what the first prompt began with.

    Each is written as soon as its sequence has ended, and the sequence let go: as JSON it takes a fraction of the memory.
    """
    tally = Tally()
    first: Started | None = None
    gathered: dict[int, Gathered] = {}
    choices: dict[int, asyncio.Task[bytes]] = {}  # beside the events, which must be taken as they come
    try:
        async with aclosing(events):
            async for which, event in events:
                tally.add(event)
                if isinstance(event, Started):
                    first = event if which == 0 else first
                    gathered.update((which * sequences + index, Gathered(event)) for index in range(sequences))
                    continue
                index = which * sequences + event.index
                gathered[index].add(event)
                if isinstance(event, Finished):
                    one = gathered.pop(index)
                    positions = len(one.logprobs) + len(one.started.prompt_logprobs or ())
                    writing = written(client, partial(choice, index, one), positions)
                    choices[index] = asyncio.create_task(writing)
        assert first is not None, "every prompt begins"
        return [await choices[index] for index in sorted(choices)], first, tally
    finally:
        for task in choices.values():
            task.cancel()


async def written(client: EngineClient, content: Callable[[], Any], positions: int) -> bytes:
    """The JSON of what holds so many positions' log-probabilities: off the event loop if they are many."""
    if positions < MANY_POSITIONS:
        return _encode(content())
    return await client.run_long(lambda: _encode(content()))


async def stream_frames(
    client: EngineClient,
    events: Events,
    additions: Callable[[int, Event], Sequence[Mapping[str, Any]]],
    head: Mapping[str, Any],
    options: StreamOptions | None,
) -> AsyncGenerator[bytes, None]:
    """The SSE frames of a stream: `head` with each of the additions that an event makes, usage if wanted, the end.

    Neither `head` nor an addition is empty.
    """
    include_usage = options is not None and bool(options.include_usage)
    continuous = include_usage and options is not None and bool(options.continuous_usage_stats)
    tally = Tally()
    opening = b"data: " + _encode(head)[:-1] + b","  # what is the same in every chunk is written once
    async with aclosing(events):
        async for which, event in events:
            if include_usage:
                tally.add(event)
            usage = {"usage": usage_reply(tally) if continuous else None} if include_usage else {}
            made = partial(_frames, opening, partial(additions, which, event), usage)
            scores = event.prompt_logprobs if isinstance(event, Started) else None
            for frame in made() if scores is None else await client.run_long(made):
                yield frame
    if include_usage:
        yield opening + _encode({"choices": [], "usage": usage_reply(tally)})[1:] + b"\n\n"
    yield DONE


def _frames(opening: bytes, additions: Callable[[], Sequence[Mapping[str, Any]]], usage: Mapping[str, Any]) -> list[bytes]:
    return [opening + _encode({**addition, **usage})[1:] + b"\n\n" for addition in additions()]
