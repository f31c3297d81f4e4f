"""What a request for a chat says, whichever surface it came by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from jaxserve.types import ChatMessage
from server.structured import Form


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTools:
    """Tools, and what to do with them.

    Attributes:
        tools: as chat completions have them; templates get them so.
        choice: `tool_choice` of chat completions or of responses.
        parallel: whether there may be several calls.
        paths: what the client calls the schema of each tool's arguments.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    choice: Any = None
    parallel: bool = True
    paths: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedThinking:
    """Thinking before the answer.

    Attributes:
        wanted: None for what the model does by itself.
        effort: one of the words that models know, for the chat template.
        budget: tokens of thinking at most.
        shown: whether the client gets to see it.
        param: the client's field that asks for it, for errors.
    """

    wanted: bool | None = None
    effort: str | None = None
    budget: int | None = None
    shown: bool = True
    param: str = "reasoning_effort"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedChat:
    """A conversation to go on with.

    Attributes:
        messages: as templates take them.
        arguments: of EngineClient.render_chat.
        form: of the answer, behind thinking and instead of calls.
        folds_system: whether system messages inside of it are joined to their neighbours where the chat template knows none.
    """

    messages: Sequence[ChatMessage]
    arguments: Mapping[str, Any]
    tools: AskedTools = field(default_factory=AskedTools)
    thinking: AskedThinking = field(default_factory=AskedThinking)
    form: Form = field(default_factory=Form)
    folds_system: bool = False


NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})
