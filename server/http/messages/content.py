"""The blocks of content that a response is made of: whole, and as the events of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from jaxserve.chat_parsing import (
    ContentDelta,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallBegin,
    ToolCallEnd,
    ToolCallFailed,
    settled,
)
from jaxserve.chat_parsing import Delta as Part
from server.http.messages.replies import ContentBlockReply, TextBlockReply, ThinkingBlockReply, ToolUseBlockReply

_CALL = (ToolCallBegin, ToolArgumentsDelta, ToolCallEnd, ToolCallFailed)


def content_of(parts: Sequence[Part], *, omits_thinking: bool) -> list[ContentBlockReply]:
    """The blocks of a whole response, at least one. A call that is not whole is none.

    Args:
        omits_thinking: whether blocks of thinking are empty.
    """
    whole = {part.index for part in parts if isinstance(part, ToolCallEnd)}
    kept = [part for part in settled(parts) if not isinstance(part, _CALL) or part.index in whole]
    blocks = [_block(list(group), omits_thinking=omits_thinking) for _, group in groupby(kept, _of_block)]
    return blocks or [_text("")]


def _of_block(part: Part) -> int | type[Part]:
    """What neighbours have in common that are of one block."""
    return part.index if isinstance(part, _CALL) else type(part)


def _block(parts: Sequence[Part], *, omits_thinking: bool) -> ContentBlockReply:
    text = "".join(part.text for part in parts if isinstance(part, ReasoningDelta | ContentDelta | ToolArgumentsDelta))
    match parts[0]:
        case ToolCallBegin(_, name, call_id):
            # JSON stays as it was written: numbers of any size, too.
            return _tool_use(name, call_id, msgspec.Raw(text.encode()))
        case ReasoningDelta():
            return _thinking("" if omits_thinking else text)
    return _text(text)


class BlockEvents:
    """The events of one response's blocks: each begins with its first part, and only one is open at a time."""

    def __init__(self, *, omits_thinking: bool) -> None:
        self._omits_thinking = omits_thinking
        self._index = -1  # of the block that began last
        self._open = ""  # its type, if it is open

    def add(self, part: Part) -> Iterator[Mapping[str, Any]]:
        """The events of the next part. A call that fails ends its block, and its text comes in one of text."""
        match part:
            case ContentDelta(text):
                yield from self._in(_text(""))
                yield self._delta({"type": "text_delta", "text": text})
            case ReasoningDelta(text):
                yield from self._in(_thinking(""))
                if not self._omits_thinking:
                    yield self._delta({"type": "thinking_delta", "thinking": text})
            case ToolCallBegin(_, name, call_id):
                yield from self._in(_tool_use(name, call_id, {}))
            case ToolArgumentsDelta(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case ToolCallEnd() | ToolCallFailed():
                yield from self._end()

    def finish(self) -> Iterator[Mapping[str, Any]]:
        """The last events: there is at least one block, and none is open."""
        if self._index < 0:
            yield from self._in(_text(""))
        yield from self._end()

    def _in(self, block: ContentBlockReply) -> Iterator[Mapping[str, Any]]:
        """Events after which such a block is open."""
        if block["type"] == self._open:
            return
        yield from self._end()
        self._index += 1
        self._open = block["type"]
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _end(self) -> Iterator[Mapping[str, Any]]:
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": ""})
        if self._open:
            yield {"type": "content_block_stop", "index": self._index}
        self._open = ""

    def _delta(self, delta: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def _text(text: str) -> TextBlockReply:
    return {"type": "text", "text": text}


def _thinking(text: str) -> ThinkingBlockReply:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _tool_use(name: str, call_id: str | None, arguments: Any) -> ToolUseBlockReply:
    return {"type": "tool_use", "id": call_id or "", "name": name, "input": arguments}
