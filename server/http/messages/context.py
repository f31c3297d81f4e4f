"""`context_management`: accepted where it changes nothing of the conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from jaxserve.errors import InvalidRequestError
from server.http.messages.blocks import AnthropicMessage, Block
from server.http.numbers import Integer

_CLEARED_BEYOND = 100_000  # tokens of a prompt, by default
_COMPACTED_BEYOND = 150_000
_KEPT_TOOL_USES = 3
_KEPT_THINKING_TURNS = 1


class Amount(BaseModel):
    """So much of something."""

    model_config = ConfigDict(strict=True)

    type: Literal["input_tokens", "tool_uses", "thinking_turns"]
    value: Integer = Field(ge=0, description="Count, in units of `type`.")


class AllTurns(BaseModel):
    """All of them: the same as the word alone."""

    model_config = ConfigDict(strict=True)

    type: Literal["all"]


class _Edit(BaseModel):
    model_config = ConfigDict(strict=True)

    def changes(self, turns: Sequence[AnthropicMessage], prompt_tokens: int) -> bool:
        """Whether it leaves out something of the conversation."""
        raise NotImplementedError


class ClearThinking(_Edit):
    """Leave out the thinking of earlier turns."""

    type: Literal["clear_thinking_20251015"]
    keep: Amount | AllTurns | Literal["all"] | None = Field(
        None, description="the last turns whose thinking stays, 1 by default, or all"
    )

    def changes(self, turns: Sequence[AnthropicMessage], prompt_tokens: int) -> bool:
        if self.keep == "all" or isinstance(self.keep, AllTurns):
            return False
        thinking = sum(any(block.type == "thinking" for block in _blocks([turn])) for turn in turns)
        return thinking > (_KEPT_THINKING_TURNS if self.keep is None else self.keep.value)


class ClearToolUses(_Edit):
    """Leave out the results of earlier calls."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: Amount | None = Field(None, description="beyond which prompt, 100,000 input_tokens by default, or which tool_uses")
    keep: Amount | None = Field(None, description="the last tool_uses that stay, 3 by default")
    clear_at_least: Amount | None = Field(None, description="without effect")
    clear_tool_inputs: bool | list[str] | None = Field(None, description="without effect")
    exclude_tools: list[str] | None = Field(None, description="tools whose results stay")

    def changes(self, turns: Sequence[AnthropicMessage], prompt_tokens: int) -> bool:
        names = [block.name for block in _blocks(turns) if block.type == "tool_use"]
        excluded = frozenset(self.exclude_tools or ())
        clearable = sum(name not in excluded for name in names)
        if clearable <= (_KEPT_TOOL_USES if self.keep is None else self.keep.value):
            return False
        return _exceeds(self.trigger, _CLEARED_BEYOND, prompt_tokens, len(names))


class Compact(_Edit):
    """Replace earlier turns by a summary."""

    type: Literal["compact_20260112"]
    trigger: Amount | None = Field(None, description="beyond which prompt, 150,000 input_tokens by default")
    pause_after_compaction: bool | None = Field(None, description="without effect")
    instructions: str | None = Field(None, description="without effect")

    def changes(self, turns: Sequence[AnthropicMessage], prompt_tokens: int) -> bool:
        uses = sum(block.type == "tool_use" for block in _blocks(turns))
        return _exceeds(self.trigger, _COMPACTED_BEYOND, prompt_tokens, uses)


class ContextManagement(BaseModel):
    """What to clear of a long conversation."""

    model_config = ConfigDict(strict=True)

    edits: list[Annotated[ClearThinking | ClearToolUses | Compact, Field(discriminator="type")]] | None = Field(
        None, description="edits that change nothing are accepted"
    )

    def check(self, turns: Sequence[AnthropicMessage], prompt_tokens: int) -> None:
        """Raise InvalidRequestError naming the first edit that leaves out something."""
        for place, edit in enumerate(self.edits or ()):
            if edit.changes(turns, prompt_tokens):
                path = f"context_management.edits[{place}]"
                what = f"{path} ({edit.type}) would change this conversation of {prompt_tokens} tokens, which is not supported"
                raise InvalidRequestError(f"{what} by this server yet: shorten it yourself, or keep all", param=path)


def _exceeds(trigger: Amount | None, default: int, prompt_tokens: int, uses: int) -> bool:
    if trigger is None:
        return prompt_tokens > default
    return (uses if trigger.type == "tool_uses" else prompt_tokens) > trigger.value


def _blocks(turns: Sequence[AnthropicMessage]) -> Iterator[Block]:
    for turn in turns:
        if not isinstance(turn.content, str):
            yield from turn.content
