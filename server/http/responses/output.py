"""The items of one response, as they come to be out of what is read of its text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

from jaxserve.chat_parsing import (
    ContentDelta,
    ContentWasReasoning,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallBegin,
    ToolCallEnd,
    ToolCallFailed,
)
from jaxserve.chat_parsing import Delta as Part
from jaxserve.engine.events import PositionLogprobs
from server.events import ReadDelta
from server.http.logprobs import chat_logprobs
from server.http.replies import Reason
from server.http.responses.replies import (
    FunctionCallReply,
    ItemStatus,
    OutputItemReply,
    OutputMessageReply,
    OutputTextReply,
    ReasoningItemReply,
    ReasoningTextReply,
)


@dataclass(slots=True)
class Item(ABC):
    """One item.

    Attributes:
        place: its number in the stream.
    """

    place: int
    id: str
    status: ItemStatus = "in_progress"
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @abstractmethod
    def reply(self) -> OutputItemReply:
        """What is told of it; of one that is in progress, what its first event tells."""


@dataclass(slots=True)
class ReasoningItem(Item):
    """What was thought."""

    def part(self) -> ReasoningTextReply:
        return {"type": "reasoning_text", "text": self.text}

    def reply(self) -> ReasoningItemReply:
        content = [] if self.status == "in_progress" else [self.part()]
        return {"id": self.id, "type": "reasoning", "summary": [], "content": content, "status": self.status}


@dataclass(slots=True)
class MessageItem(Item):
    """A text for the user."""

    positions: list[PositionLogprobs] = field(default_factory=list)

    def part(self) -> OutputTextReply:
        logprobs = chat_logprobs(self.positions)["content"]
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": logprobs}

    def reply(self) -> OutputMessageReply:
        content = [] if self.status == "in_progress" else [self.part()]
        return {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": content}


@dataclass(slots=True, kw_only=True)
class CallItem(Item):
    """A call."""

    call_id: str
    name: str

    def reply(self) -> FunctionCallReply:
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.text,
        }


@dataclass(frozen=True, slots=True)
class Begun:
    """An item begins."""

    item: Item


@dataclass(frozen=True, slots=True)
class Grown:
    """Text of an item came; of a message, the positions of its tokens too."""

    item: Item
    text: str
    positions: Sequence[PositionLogprobs] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """An item is over."""

    item: Item


Change = Begun | Grown | Ended


_Some = TypeVar("_Some", bound=Item)


class Output:
    """Items, each of which begins with its first text. A new kind of text ends the item before.

    Args:
        name: with which the ids of items end.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._items: list[Item] = []
        self._open: Item | None = None
        self._corrected, self._shows_corrected = 0, True  # so many items are reasoning, not messages; whether that is shown
        self._positions: list[PositionLogprobs] = []  # of tokens whose text is held back, or of a call that may yet be none

    def add(self, event: ReadDelta) -> Iterator[Change]:
        """Take what came; to be run through, as the items only change meanwhile."""
        if event.reasoning_tokens:
            self._positions.clear()
        self._positions.extend(event.logprobs or ())
        for part in event.parts:
            yield from self._take(part)
        thought = event.reasoning_tokens or any(isinstance(part, ReasoningDelta) for part in event.parts)
        if thought:
            self._positions.clear()

    def finish(self, reason: Reason) -> Iterator[Change]:
        """Take the end. A response of nothing has one message, which is empty."""
        status: ItemStatus = "incomplete" if reason == "length" else "completed"
        if isinstance(self._open, CallItem):
            yield from self._end(status)
        if not any(map(_is_told, self._items)):
            yield Begun(self._message())
        if isinstance(self._open, MessageItem) and self._positions:  # of tokens without a text
            yield self._grow(self._open, "")
        yield from self._end(status)

    def replies(self, *, was_streamed: bool = True) -> list[OutputItemReply]:
        """The items of the whole response: calls that were cut off, or were none, are not among them.

        Messages whose text turned out to be reasoning stay messages if they have been streamed.
        """
        items = self._items if was_streamed else [*self._corrected_items(), *self._items[self._corrected :]]
        return [item.reply() for item in items if _is_told(item)]

    def _corrected_items(self) -> Iterator[Item]:
        for item in self._items[: self._corrected]:
            if not isinstance(item, MessageItem):
                yield item
            elif self._shows_corrected:
                yield _as_reasoning(item)

    def _take(self, part: Part) -> Iterator[Change]:
        match part:
            case ReasoningDelta(text):
                if not isinstance(self._open, ReasoningItem):
                    yield from self._end()
                    yield Begun(self._begin(ReasoningItem(*self._named("rs"))))
                yield self._grow(self._last, text)
            case ContentDelta(text):
                later: list[PositionLogprobs] = []
                if not isinstance(self._open, MessageItem):
                    yield from self._end()
                    self._positions, later = _of_text(self._positions, text)
                    yield Begun(self._message())
                yield self._grow(self._last, text)
                self._positions += later
            case ToolCallBegin(name=name, id=call_id):
                yield from self._end()
                yield Begun(self._begin(CallItem(*self._named("fc"), call_id=call_id or "", name=name)))
            case ToolArgumentsDelta(text=text):
                yield self._grow(self._last, text)
            case ToolCallEnd():
                self._positions.clear()
                self._last.status = "completed"
                yield from self._end()
            case ToolCallFailed():
                yield from self._end()
            case ContentWasReasoning(is_shown):
                yield from self._end()
                self._corrected, self._shows_corrected = len(self._items), is_shown

    @property
    def _last(self) -> Item:
        return self._items[-1]

    def _named(self, kind: str) -> tuple[int, str]:
        place = len(self._items)
        return place, f"{kind}_{self._name}_{place}" if place else f"{kind}_{self._name}"

    def _message(self) -> MessageItem:
        return self._begin(MessageItem(*self._named("msg")))

    def _begin(self, item: _Some) -> _Some:
        self._items.append(item)
        self._open = item
        return item

    def _grow(self, item: Item, text: str) -> Grown:
        item.pieces.append(text)
        if not isinstance(item, MessageItem):
            return Grown(item, text)
        positions = tuple(self._positions)
        self._positions.clear()
        item.positions.extend(positions)
        return Grown(item, text, positions)

    def _end(self, status: ItemStatus = "completed") -> Iterator[Change]:
        """End the item that is open. A call that is not whole by then is incomplete."""
        item, self._open = self._open, None
        if item is None:
            return
        if item.status == "in_progress":
            item.status = "incomplete" if isinstance(item, CallItem) else status
        yield Ended(item)


def _as_reasoning(message: MessageItem) -> ReasoningItem:
    return ReasoningItem(message.place, message.id.replace("msg_", "rs_", 1), message.status, message.pieces)


def _is_told(item: Item) -> bool:
    return not isinstance(item, CallItem) or item.status == "completed"


def _of_text(positions: list[PositionLogprobs], text: str) -> tuple[list[PositionLogprobs], list[PositionLogprobs]]:
    """Those of a message's first text and those after it. Before it there may be markers; white space may be from before them."""
    raw, written = b"".join(position.chosen.raw for position in positions), text.encode()
    before = raw.rfind(written)
    if before < 0:
        written = text.lstrip().encode()
        before = raw.rfind(written)
    if before < 0:
        return positions, []
    ends = list(accumulate(len(position.chosen.raw) for position in positions))
    first, last = bisect_right(ends, before), bisect_left(ends, before + len(written)) + 1
    return positions[first:last], positions[last:]
