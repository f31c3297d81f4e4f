"""Which template a model's responses are read with: the checkpoint's own, one by name, or what its chat template shows."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from jaxserve.chat_parsing.families import FAMILIES
from jaxserve.chat_parsing.family import Family
from jaxserve.chat_parsing.template import ResponseTemplate, load_template
from jaxserve.config.fields import ModelConfig
from jaxserve.errors import CheckpointError, ConfigError

AUTO, NONE = "auto", "none"
OWN = ("hf", "response_template")  # the checkpoint's own and no other
TOOL_CALL_PARSERS = tuple(sorted({name for family in FAMILIES for name in family.tool_parsers}))
REASONING_PARSERS = tuple(
    sorted({name for family in FAMILIES for name in (*family.reasoning_parsers, *family.inline_reasoning_parsers)})
)

_Spec = Mapping[str, Any]
_BEGINNING = regex.compile(r"(?<![\\\[])\^")


@dataclass(frozen=True, slots=True)
class Parsers:
    """What an operator says of how the model writes.

    Attributes:
        tool_call_parser, reasoning_parser: a name, `auto`, `none`, or `hf` for the checkpoint's own response_template.
        response_template: path of a JSON file that takes the place of the checkpoint's own.
    """

    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO
    response_template: str | None = None

    @classmethod
    def of(cls, config: ModelConfig) -> Parsers:
        file = config.response_template
        return cls(config.tool_call_parser, config.reasoning_parser, None if file is None else str(Path(file).resolve()))


def find_template(
    chat_template: str,
    vocabulary: Collection[str] = (),
    *,
    own: _Spec | None = None,
    tool_call_parser: str = AUTO,
    reasoning_parser: str = AUTO,
) -> ResponseTemplate | None:
    """The template for a checkpoint; None where it neither says nor shows one.

    Args:
        chat_template: its source, all of them joined if there are several.
        vocabulary: the texts of the special and added tokens; asked where the chat template shows nothing.
        own: `response_template` of tokenizer_config.json; taken unless a parser is named.
        tool_call_parser, reasoning_parser: a name, `auto`, `none`, or `hf` for `own` and no other.

    Raises ConfigError for a name that is not known or two that do not go together, CheckpointError for an `own` that is wrong.
    """
    _check_name("tool_call_parser", tool_call_parser, TOOL_CALL_PARSERS, own)
    _check_name("reasoning_parser", reasoning_parser, REASONING_PARSERS, own)
    if own is not None and {tool_call_parser, reasoning_parser} & {AUTO, *OWN}:
        _loaded(own, "response_template of tokenizer_config.json")
    texts = (chat_template, "\n".join(vocabulary))
    tools: _Spec | None = None
    tool_family: Family | None = None
    if tool_call_parser != NONE:
        if own is not None and tool_call_parser in (AUTO, *OWN):
            tools = own
        elif tool_family := _tool_family(tool_call_parser, texts):
            tools = tool_family.template
    reasoning: _Spec | None = None
    if reasoning_parser != NONE:
        if own is not None and reasoning_parser in (AUTO, *OWN):
            reasoning = own
        elif family := _reasoning_family(reasoning_parser, chat_template, tool_family):
            reasoning = _inline(family.template) if reasoning_parser in family.inline_reasoning_parsers else family.template
    return _composed(tools, reasoning)


def read_template_file(path: str | Path) -> dict[str, Any]:
    """The `response_template` of a JSON file: the whole file, or what it has under that key. Raises ConfigError."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}", param="response_template") from error
    spec = value.get("response_template", value) if isinstance(value, dict) else value
    try:
        load_template(spec)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", param="response_template") from error
    assert isinstance(spec, dict)
    return spec


def _check_name(param: str, name: str, known: tuple[str, ...], own: _Spec | None) -> None:
    if name in OWN and own is None:
        raise ConfigError(f"{param} {name} needs a response_template, and the checkpoint has none", param=param)
    if name not in (AUTO, NONE, *OWN, *known):
        raise ConfigError(f"{param} {name} is not known; there are {', '.join((AUTO, NONE, OWN[0], *known))}", param=param)


def _tool_family(name: str, texts: tuple[str, str]) -> Family | None:
    named = [family for family in FAMILIES if name in family.tool_parsers]
    for text in texts:
        for family in FAMILIES if name == AUTO else named:
            if (
                family.tool_signs
                and all(sign in text for sign in family.tool_signs)
                and not any(sign in text for sign in family.excluded)
            ):
                return family
    return named[0] if named else None


def _reasoning_family(name: str, chat_template: str, tool_family: Family | None) -> Family | None:
    if name != AUTO:
        named = (family for family in FAMILIES if name in (*family.reasoning_parsers, *family.inline_reasoning_parsers))
        return next(named)
    if tool_family is not None and "thinking" in tool_family.template["fields"]:
        reasoning = load_template(tool_family.template).reasoning
        signs = tool_family.reasoning_signs or ((reasoning.end,) if reasoning is not None else ())
        if signs and all(sign in chat_template for sign in signs):
            return tool_family
    shown = (
        family for family in FAMILIES if family.reasoning_signs and all(sign in chat_template for sign in family.reasoning_signs)
    )
    return next(shown, None)


def _inline(spec: _Spec) -> _Spec:
    """The same template with the thinking, and its markers, in the content."""
    fields = spec["fields"]
    return {**spec, "fields": {**fields, "thinking": {**fields["thinking"], "content_args": {"in_content": True}}}}


def _composed(tools: _Spec | None, reasoning: _Spec | None) -> ResponseTemplate | None:
    """One template with the calls of one and the reasoning of the other."""
    base = tools if tools is not None else reasoning
    if base is None:
        return None
    if tools is not None and reasoning is not None and tools is not reasoning:
        for spec in (tools, reasoning):
            if {"open", "open_pattern"} & spec["fields"].get("content", {}).keys():
                raise ConfigError(
                    "a format that marks its content goes with no other: name it for calls and for reasoning",
                    param="tool_call_parser",
                )
    fields: dict[str, Any] = {}
    if reasoning is not None:
        fields |= {name: field for name, field in reasoning["fields"].items() if name not in ("tool_calls", "content")}
    if tools is not None and "tool_calls" in tools["fields"]:
        fields["tool_calls"] = _behind(tools["fields"]["tool_calls"], reasoning)
    fields["content"] = base["fields"].get("content", {})
    if tools is reasoning:
        return _loaded(base, "response_template")
    specs = [spec for spec in (tools, reasoning) if spec is not None]
    if all("start_anchor" in spec for spec in specs):
        anchor: _Spec = {"start_anchor": [text for spec in specs for text in _anchors(spec)]}
    else:
        anchor = {"start_anchor_pattern": "|".join(start for spec in specs for start in _starts(spec))}
    return _loaded({"fields": fields, **anchor}, "response_template")


def _behind(calls: _Spec, reasoning: _Spec | None) -> _Spec:
    """Calls that are told by being at the beginning of a response may be behind its thinking, too."""
    thinking = None if reasoning is None else load_template(reasoning).reasoning
    if thinking is None or "open_pattern" not in calls:
        return calls
    start = f"(?:^|(?<={regex.escape(thinking.end)}))"
    return {**calls, "open_pattern": _BEGINNING.sub(lambda _: start, calls["open_pattern"])}


def _starts(spec: _Spec) -> list[str]:
    if "start_anchor_pattern" in spec:
        return [f"(?:{spec['start_anchor_pattern']})"]
    return list(map(regex.escape, _anchors(spec)))


def _anchors(spec: _Spec) -> list[str]:
    anchors = spec["start_anchor"]
    return [anchors] if isinstance(anchors, str) else list(anchors)


def _loaded(spec: _Spec, origin: str) -> ResponseTemplate:
    try:
        return load_template(spec)
    except ValueError as error:
        raise CheckpointError(f"{origin}: {error}", param="response_template") from error
