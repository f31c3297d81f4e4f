"""What a response becomes: pieces while it streams, a message in the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ContentWasReasoning:
    """All content before this delta is reasoning whose opening marker the model left out.

    Attributes:
        is_shown: false where reasoning is not part of the message.
    """

    is_shown: bool = True


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """A call whose name is known.

    Attributes:
        index: 0 for the first call of the response, 1 for the next.
        id: the call's id where the format writes one before the arguments; the caller makes up the others.
    """

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolArgumentsDelta:
    """The next piece of the JSON text of a call's arguments; all pieces of a call that ended are a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call is whole: its arguments are a JSON object. A call that was cut off gets none."""

    index: int


@dataclass(frozen=True, slots=True)
class ToolCallFailed:
    """What had begun as a call is none, as its arguments are no JSON object. Its text follows as content."""

    index: int


Delta = ReasoningDelta | ContentDelta | ContentWasReasoning | ToolCallBegin | ToolArgumentsDelta | ToolCallEnd | ToolCallFailed


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a message.

    Attributes:
        arguments: JSON text; of a call that is not `complete`, the beginning of it.
        complete: false for a call in the middle of which the response was cut off.
    """

    name: str
    arguments: str
    id: str | None = None
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Message:
    """A response by its parts; None for text that there is none of."""

    reasoning: str | None = None
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


def collect(deltas: Iterable[Delta]) -> Message:
    """The message that all the deltas of a response make."""
    reasoning: list[str] = []
    content: list[str] = []
    begun: dict[int, ToolCallBegin] = {}
    arguments: dict[int, list[str]] = {}
    ended: set[int] = set()
    for delta in settled(deltas):
        match delta:
            case ReasoningDelta(text):
                reasoning.append(text)
            case ContentDelta(text):
                content.append(text)
            case ToolCallBegin(index):
                begun[index] = delta
                arguments[index] = []
            case ToolArgumentsDelta(index, text):
                arguments[index].append(text)
            case ToolCallEnd(index):
                ended.add(index)
            case ToolCallFailed(index):
                del begun[index]
    calls = (ToolCall(call.name, "".join(arguments[index]), call.id, index in ended) for index, call in begun.items())
    return Message("".join(reasoning) or None, "".join(content) or None, tuple(calls))


def settled(deltas: Iterable[Delta]) -> list[Delta]:
    """The same deltas, with content that a later `ContentWasReasoning` corrects as reasoning."""
    result: list[Delta] = []
    for delta in deltas:
        if isinstance(delta, ContentWasReasoning):
            result = [_as_reasoning(item) for item in result if delta.is_shown or not isinstance(item, ContentDelta)]
        else:
            result.append(delta)
    return result


def _as_reasoning(delta: Delta) -> Delta:
    return ReasoningDelta(delta.text) if isinstance(delta, ContentDelta) else delta


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """The same deltas, neighbours of one kind as one."""
    deltas = list(deltas)
    if len(deltas) < 2:
        return deltas
    result: list[Delta] = []
    for _, group in groupby(deltas, key=lambda delta: (type(delta), getattr(delta, "index", None))):
        first, *others = group
        if others and isinstance(first, ReasoningDelta | ContentDelta | ToolArgumentsDelta):
            text = "".join(delta.text for delta in (first, *others) if isinstance(delta, type(first)))
            result.append(replace(first, text=text))
        else:
            result += (first, *others)
    return result
