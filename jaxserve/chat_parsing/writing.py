"""How a template's calls are written: by its `writes`, or as short as its patterns allow."""

from __future__ import annotations

import json
from dataclasses import dataclass

from jaxserve.chat_parsing.patterns import leading_text, shortest_text
from jaxserve.chat_parsing.template import Field


@dataclass(frozen=True, slots=True)
class CallText:
    """The text of calls: `begin`, a `call`, `between` and a call any number of times, `end`.

    Slots: ``{name}``, ``{arguments}``, ``{index}`` (a number), ``{id}``, ``{space}`` (there may be one); in `parameter`,
    one of the arguments where each has a text of its own, ``{key}`` and ``{value}``, and ``{text}``: whether the value is a
    string, true or false.

    Attributes:
        trigger: the text, in what the model says, with which calls begin; empty if there is none.
        unmarked: where calls begin without a mark: the pattern that the beginning of the response matches then.
        prelude: what may come before them there.
        between: None if there is at most one call.
    """

    call: str
    trigger: str = ""
    unmarked: str = ""
    prelude: str = ""
    begin: str = ""
    parameter: str = ""
    between: str | None = None
    end: str = ""


def call_text(field: Field) -> CallText | None:
    """None if the template does not say how calls are written."""
    return CallText(**field.writes) if "call" in field.writes else _derived(field)


def _derived(field: Field) -> CallText | None:
    shape, opening = field.shape, field.open.shortest_text if field.open is not None else None
    closing = field.close.shortest_text if field.close is not None else ""
    if shape is None or opening is None or closing is None or field.open is None:
        return None
    parameter = ""
    if shape.name[0] != "content" and shape.arguments == ("content",) and not shape.each:
        opening = opening.replace(f"{{{shape.name[0]}}}", "{name}")
        if shape.id is not None:
            opening = opening.replace(f"{{{shape.id[0]}}}", "{id}")
        body = "{arguments}"
        if field.kind == "xml-inline":
            parameter = shortest_text(field.options.get("tag_pattern", "")) or ""
        if (field.kind == "xml-inline") != ("{key}" in parameter and "{value}" in parameter):
            return None
    elif field.kind == "json" and len(shape.name) == len(shape.arguments) == 2:
        body = f'{{{json.dumps(shape.name[1])}: "{{name}}", {json.dumps(shape.arguments[1])}: {{arguments}}}}'
    else:
        return None
    if field.kind not in ("json", "xml-inline"):
        return None
    trigger = field.open.literals[0] if field.open.literals else leading_text(field.open.source)
    if shape.each:
        return CallText(body, trigger, begin=f"{opening}[", between=", ", end=f"]{closing}")
    return CallText(f"{opening}{body}{closing}", trigger if opening.startswith(trigger) else "", parameter=parameter, between="")
