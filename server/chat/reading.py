"""Responses read as they come: which of their text is thinking, answer or calls."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import fields, replace

from jaxserve.chat_parsing import ChatParser, ContentDelta, ContentWasReasoning, ReasoningDelta, ToolCallBegin, ToolCallEnd
from jaxserve.chat_parsing import Delta as Part
from jaxserve.engine.events import Delta, Finished, Started
from jaxserve.types import FinishReason
from server.events import ReadDelta, ReadFinished
from server.streams import Events

_ID_LETTERS = 24
_SHORT_ID = 9


class ResponseReader:
    """Reads one sequence. Without a parser its text is the answer."""

    def __init__(
        self, parser: ChatParser | None, id_prefix: str = "call_", *, shows_thinking: bool = True, short_ids: bool = False
    ) -> None:
        self._parser = parser
        self._id_prefix = id_prefix
        self._shows_thinking = shows_thinking
        self._short_ids = short_ids
        self._called = False

    def add(self, event: Delta) -> ReadDelta:
        if self._parser is None:
            return _read(event, (ContentDelta(event.text),) if event.text else (), 0)
        thought = self._parser.in_reasoning
        parts = self._shown(self._parser.feed(event.text))
        return _read(event, parts, len(event.token_ids) if thought else 0)

    def finish(self, event: Finished) -> tuple[Sequence[Part], ReadFinished]:
        """What was held back, and the end."""
        stopped = event.finish_reason is FinishReason.STOP
        parts = [] if self._parser is None else self._shown(self._parser.finish(stopped=stopped))
        values = {field.name: getattr(event, field.name) for field in fields(Finished)}
        return parts, ReadFinished(**values, called=self._called and stopped)

    def _shown(self, parts: Sequence[Part]) -> list[Part]:
        self._called = self._called or any(isinstance(part, ToolCallEnd) for part in parts)
        shown = parts if self._shows_thinking else list(_without_thinking(parts))
        return [replace(part, id=self._new_id()) if isinstance(part, ToolCallBegin) and not part.id else part for part in shown]

    def _new_id(self) -> str:
        letters = uuid.uuid4().hex
        return letters[:_SHORT_ID] if self._short_ids else self._id_prefix + letters[:_ID_LETTERS]


def _without_thinking(parts: Sequence[Part]) -> Iterator[Part]:
    for part in parts:
        if isinstance(part, ContentWasReasoning):
            yield replace(part, is_shown=False)
        elif not isinstance(part, ReasoningDelta):
            yield part


def _read(event: Delta, parts: Sequence[Part], reasoning_tokens: int) -> ReadDelta:
    return ReadDelta(
        event.request_id,
        event.index,
        event.text,
        event.token_ids,
        event.first_token_index,
        event.logprobs,
        parts,
        reasoning_tokens,
    )


async def read(events: Events, reader: Callable[[], ResponseReader]) -> Events:
    """The events of one prompt with every Delta a ReadDelta and every Finished a ReadFinished."""
    readers: dict[int, ResponseReader] = {}
    async with aclosing(events):
        async for which, event in events:
            if isinstance(event, Started):
                yield which, event
                continue
            one = readers.get(event.index)
            if one is None:
                one = readers[event.index] = reader()
            if isinstance(event, Delta):
                yield which, one.add(event)
                continue
            parts, end = one.finish(event)
            if parts:
                empty = Delta(event.request_id, event.index, "", (), event.usage.completion_tokens)
                yield which, _read(empty, parts, 0)
            yield which, end
