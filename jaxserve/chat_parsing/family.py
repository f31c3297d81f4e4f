"""What a family of models' way to write responses is, and what many of them have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FUNCTION = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
NAMED_WITH_ID = {**NAMED, "id": "{id}"}
EACH = {"type": "function", "id": "{id}", "function": {"name": "{name}", "arguments": "{arguments}"}}
ENVELOPE = '{"name": "{name}", "arguments": {arguments}}'
ANY_JSON = {"name": "json", "args": {"allow_non_json": True}}
NAME = r"[\w.\-]+"
BARE_CALL = r"\{\s*\"name\"\s*:"  # how a call begins that no marker tells: a tool's name has to follow


@dataclass(frozen=True, slots=True)
class Family:
    """A way to write calls, reasoning or both.

    Attributes:
        tool_parsers, reasoning_parsers: its names, which are those of vLLM for `--tool-call-parser` and `--reasoning-parser`.
        inline_reasoning_parsers: names for reasoning that stays in the content, with its markers.
        tool_signs, reasoning_signs: texts which the chat template of a model that writes so has, all of them.
        excluded: a text that shows another family.
    """

    template: Mapping[str, Any]
    tool_parsers: tuple[str, ...] = ()
    reasoning_parsers: tuple[str, ...] = ()
    inline_reasoning_parsers: tuple[str, ...] = ()
    tool_signs: tuple[str, ...] = ()
    reasoning_signs: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


def template_of(
    start: str | list[str],
    tool_calls: Mapping[str, Any],
    thinking: Mapping[str, Any] | None = None,
    section: tuple[str, ...] = (),
) -> dict[str, Any]:
    """`section`: markers around all calls, which say nothing beside those of each call."""
    fields: dict[str, Any] = {"thinking": thinking} if thinking else {}
    fields["tool_calls"] = {"repeats": True, **tool_calls}
    fields["content"] = {"close": list(section)} if section else {}
    return {"start_anchor": start, "fields": fields}


def think(ends_too: str = "", *, mark: str = "think", space: str = "\n") -> dict[str, Any]:
    """`<think>...</think>`; `ends_too`: a call's marker, before which some models leave out the end of their thinking."""
    field: dict[str, Any] = {"open": f"<{mark}>", "writes": {"close": f"{space}</{mark}>{space}{space}"}}
    close = {"close_pattern": rf"</{mark}>|(?={ends_too})"} if ends_too else {"close": f"</{mark}>"}
    return {**field, **close}


def listed(marker: str, *, begin: str = "", end: str = "]") -> dict[str, str]:
    """How a list of objects with name and arguments is written."""
    return {"trigger": marker, "begin": begin or f"{marker}[", "call": ENVELOPE, "between": ", ", "end": end}


CHATML = "<|im_start|>assistant\n"
