"""What chat and text completions share: gathering events into whole sequences, streaming them, counting tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgspec

from jaxserve.engine.client import ModelInfo
from jaxserve.engine.events import Delta, Event, Finished, PositionLogprobs, Started
from jaxserve.types import FinishReason
from server.http.fields import StreamOptions
from server.http.replies import Reason, UsageReply
from server.http.sse import DONE
from server.streams import Events

_encode = msgspec.json.Encoder().encode

_FINGERPRINT = 16  # of its letters: enough to tell models apart


@dataclass(slots=True)
class Tally:
    """Token counts of a request so far. A prompt counts once, however many sequences it has."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def add(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, Delta):
            self.completion += len(event.token_ids)
        elif isinstance(event, Started):
            self.prompt += len(event.prompt_token_ids)
            self.cached += event.cached_tokens

    def reply(self) -> UsageReply:
        """The counts in OpenAI's shape."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(slots=True)
class Gathered:
    """One whole sequence; `matched` is the stop string that ended it."""

    started: Started
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    reason: Reason = "stop"
    matched: str | None = None


def fingerprint_of(model: ModelInfo) -> str | None:
    """system_fingerprint: who gets the same one was answered by the same weights and configuration."""
    return f"fp_{model.fingerprint[:_FINGERPRINT]}" if model.fingerprint else None


def reason_of(event: Finished) -> Reason:
    """finish_reason; what did not end by itself has become an error before it gets here."""
    return cast(Reason, event.reason.value)


def matched_text(event: Finished) -> str | None:
    """The stop string that ended the sequence, if one did."""
    return event.matched if isinstance(event.matched, str) else None


async def without_output(events: Events) -> Events:
    """The same without the tokens that came: as if none had been made."""
    async with aclosing(events):
        async for which, event in events:
            if isinstance(event, Finished):
                yield which, replace(event, reason=FinishReason.LENGTH, matched=None)
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
            one = gathered[which * sequences + event.index]
            if isinstance(event, Delta):
                one.text.append(event.text)
                one.token_ids.extend(event.token_ids)
                one.logprobs.extend(event.logprobs or ())
            else:
                one.reason = reason_of(event)
                one.matched = matched_text(event)
    return [gathered[index] for index in sorted(gathered)], tally


async def stream_frames(
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
            for addition in additions(which, event):
                if include_usage:
                    addition = {**addition, "usage": tally.reply() if continuous else None}
                yield opening + _encode(addition)[1:] + b"\n\n"
    if include_usage:
        yield opening + _encode({"choices": [], "usage": tally.reply()})[1:] + b"\n\n"
    yield DONE
