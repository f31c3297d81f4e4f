"""`tool_choice`: which tools may be called, and whether one must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxserve.chat_parsing.tools import Tool
from jaxserve.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What a response may do with tools. No `tools`: it may call none."""

    tools: tuple[Tool, ...]
    required: bool = False
    parallel: bool = True


def resolve_tool_choice(tools: Sequence[Tool], choice: Any = None, *, parallel: bool = True) -> ToolChoice:
    """The choice of a request, in the forms of chat completions and of responses.

    That is `auto` (or None), `none`, `required`, a function by its name, which is called once, or `allowed_tools` with a
    mode. Raises InvalidRequestError for another one, or for a tool that is not there.
    """
    match choice:
        case None | "auto":
            return ToolChoice(tuple(tools), parallel=parallel)
        case "none":
            return ToolChoice(())
        case "required":
            return ToolChoice(_some(tools), required=True, parallel=parallel)
        case {"type": "function", "function": {"name": name}} | {"type": "function", "name": name}:
            return ToolChoice((_named(tools, name),), required=True, parallel=False)
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(allowed)}} | {
            "type": "allowed_tools",
            "mode": mode,
            "tools": list(allowed),
        } if mode in ("auto", "required"):
            chosen = {tool.name: tool for tool in (_named(tools, _name(item)) for item in allowed)}
            return ToolChoice(_some(tuple(chosen.values())), required=mode == "required", parallel=parallel)
    raise InvalidRequestError("tool_choice must be auto, none, required, a function or allowed_tools", param="tool_choice")


def _name(item: Any) -> Any:
    function = item.get("function", item) if isinstance(item, Mapping) else None
    return function.get("name") if isinstance(function, Mapping) else None


def _named(tools: Sequence[Tool], name: Any) -> Tool:
    for tool in tools:
        if tool.name == name:
            return tool
    raise InvalidRequestError(f"tool_choice names {name!r:.80}, which is not in tools", param="tool_choice")


def _some(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    if not tools:
        raise InvalidRequestError("tool_choice asks for a call, and there are no tools", param="tool_choice")
    return tuple(tools)
