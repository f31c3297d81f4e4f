"""The arguments of a call, by its tool's schema and as the model's family writes them: JSON, tags, Python or a dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxserve.chat_parsing.lark import Lark, one_of
from jaxserve.chat_parsing.patterns import leading_texts, shortest_text
from jaxserve.chat_parsing.template import Field
from jaxserve.chat_parsing.tools import JSON_TYPES, Schema, Tool, listed, mapped, resolve, types_of
from jaxserve.chat_parsing.writing import CallText
from jaxserve.errors import InvalidRequestError

_PLAIN_KEY = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_QUOTED = r"""/'([^'\\\x00-\x1f]|\\['\\nrt])*'/"""
_TAG_KEY = re.compile(r"[^<>\s\"]([^<>\r\n\"]*[^<>\s\"])?")
_DEFINITIONS = ("$defs", "definitions")
_IS_TEXT = "{text}"
_ANY_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
_SHORT_HEAD = 2  # characters: strings may have the beginnings of tags in them that are as short
_NO_CONTAINER = r"\s*([^\s{\[](?s:.*))?"  # text that nobody reads as an object or a list of JSON


def arguments_rule(lark: Lark, field: Field, text: CallText, tool: Tool) -> str:
    """What stands for ``{arguments}`` of a call; may be nothing. Raises InvalidRequestError where the schema is of no object."""
    if field.kind == "json" and not field.options.get("unquoted_keys"):
        return lark.json(_object_schema(tool))
    properties = _properties(tool)
    if field.kind == "json":
        marks = field.options.get("string_delims") or [['"', '"']]
        return _Dialect(lark, tool.parameters, marks[0]).object(tool.parameters)
    if _is_open(resolve(tool.parameters, tool.parameters)):
        return _any_arguments(lark, field, text)
    items = [(_parameter(lark, field, text, tool, key, schema), key in _required(tool)) for key, schema in properties]
    if field.kind == "python-calls":
        required = [rule for rule, is_required in items if is_required]
        optional = [rule for rule, is_required in items if not is_required]
        return lark.separated(required, optional, '", "')
    return " ".join(rule if is_required else f"({rule})?" for rule, is_required in items)


def _object_schema(tool: Tool) -> Schema:
    if not tool.parameters:  # a function without parameters
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **tool.parameters}


def _is_open(schema: Schema) -> bool:
    """Whether it is of objects of which it says nothing more."""
    return bool(schema) and "properties" not in schema and schema.get("additionalProperties", True) is not False


def _any_arguments(lark: Lark, field: Field, text: CallText) -> str:
    """Any number of arguments, each with a text of its own, of any names and values."""
    before, between, after = re.split(r"\{key\}|\{value\}", text.parameter)
    if _IS_TEXT in between:
        opening = f"{lark.literal(before)} {_ANY_KEY}"
        said = (f"{opening} {value}" for value in _said_values(lark, field, text, between, after, {}, {}))
        return f"{lark.rule('argument', one_of(said))}*"
    named = f"{lark.literal(before)} {_ANY_KEY} {lark.literal(between)}"
    if field.kind == "python-calls":
        one = lark.rule("argument", f"{named} {lark.json({})}")
        return f'({one} (", " {one})*)?'
    return f"{lark.rule('argument', f'{named} {_tag_value(lark, field, text, after, {}, {})}')}*"


def _tag_value(lark: Lark, field: Field, text: CallText, after: str, schema: Schema, root: Schema) -> str:
    """A text up to the end of its tag; where it may be something else than a string, a list or an object, too."""
    types = types_of(schema, root)
    if types == ("string",):
        return _text_value(lark, field, text, after, _lengths(resolve(schema, root)))
    containers = [name for name in ("object", "array") if not types or name in types]
    plain = _text_value(lark, field, text, after, (_NO_CONTAINER,))
    if not containers:
        return plain
    return f"({plain} | {lark.json({**_with_definitions(schema, root), 'type': containers})} {lark.literal(after)})"


def _text_value(lark: Lark, field: Field, text: CallText, after: str, also: Sequence[str]) -> str:
    """Text up to the end of its tag, without the texts that the parser takes for the beginning of the next tag."""
    pattern = field.options["tag_pattern"]
    closing = (shortest_text(pattern) or text.parameter).partition("{value}")[2].strip()
    heads = [head for head in leading_texts(pattern) if len(head) > _SHORT_HEAD]
    return lark.until(closing, after, also, without=heads)


def _said_values(
    lark: Lark, field: Field, text: CallText, before: str, after: str, schema: Schema, root: Schema
) -> Iterator[str]:
    """Values with the end of their opening tag, which says whether they are strings, and the closing one."""
    opening = {is_text: lark.literal(before.replace(_IS_TEXT, json.dumps(is_text))) for is_text in (True, False)}
    if choices := _choices(resolve(schema, root)):
        for choice in choices:
            value = choice if isinstance(choice, str) else json.dumps(choice)
            yield f"{opening[isinstance(choice, str)]} {lark.literal(f'{value}{after}')}"
        return
    types = types_of(schema, root) or JSON_TYPES
    if "string" in types:
        yield f"{opening[True]} {_text_value(lark, field, text, after, _lengths(resolve(schema, root)))}"
    if others := [name for name in types if name != "string"]:
        yield f"{opening[False]} {lark.json({**_with_definitions(schema, root), 'type': others})} {lark.literal(after)}"


def _properties(tool: Tool) -> list[tuple[str, Schema]]:
    schema = resolve(tool.parameters, tool.parameters)
    if any(key in schema for key in ("anyOf", "oneOf", "allOf")):
        raise InvalidRequestError(
            f"the parameters of {tool.name} must be one object with properties: this model writes each argument by itself",
            param="tools",
        )
    return [(key, value if isinstance(value, Mapping) else {}) for key, value in mapped(schema, "properties").items()]


def _required(tool: Tool) -> frozenset[str]:
    return _names(resolve(tool.parameters, tool.parameters), "required")


def _names(schema: Schema, keyword: str) -> frozenset[str]:
    return frozenset(name for name in listed(schema, keyword) if isinstance(name, str))


def _parameter(lark: Lark, field: Field, text: CallText, tool: Tool, key: str, schema: Schema) -> str:
    """One argument with its marks around it."""
    if not (key.isidentifier() if field.kind == "python-calls" else _TAG_KEY.fullmatch(key)):
        raise InvalidRequestError(f"{tool.name} has a parameter {key!r:.80}, which this model cannot name", param="tools")
    before, _, after = text.parameter.replace("{key}", key).partition("{value}")
    if _IS_TEXT in before:
        said = _said_values(lark, field, text, before, after, schema, tool.parameters)
        return lark.rule("argument", one_of(said))
    plain = resolve(schema, tool.parameters)
    types = types_of(schema, tool.parameters)
    if field.kind == "python-calls":
        return lark.rule("argument", f"{lark.literal(before)} {one_of(_python_values(lark, tool, schema))}")
    elif choices := _choices(plain):
        texts = [choice if isinstance(choice, str) else json.dumps(choice) for choice in choices]
        value = one_of(lark.literal(f"{item}{after}") for item in texts)
    elif types and "string" not in types:
        value = f"{lark.json(_with_definitions(schema, tool.parameters))} {lark.literal(after)}"
    else:
        value = _tag_value(lark, field, text, after, schema, tool.parameters)
    return lark.rule("argument", f"{lark.literal(before)} {value}")


def _python_values(lark: Lark, tool: Tool, schema: Schema) -> Iterator[str]:
    """JSON, which Python reads nearly as it is, and what Python has instead of the simple ones."""
    yield lark.json(_with_definitions(schema, tool.parameters))
    plain = resolve(schema, tool.parameters)
    types = types_of(schema, tool.parameters)
    if choices := _choices(plain):
        yield from (lark.literal(_in_quotes(choice)) for choice in choices if isinstance(choice, str))
        return
    if "string" in types and not plain.keys() & {"minLength", "maxLength", "pattern", "format"}:
        yield lark.rule("QUOTED", _QUOTED)
    words = {"boolean": ("True", "False"), "null": ("None",)}
    yield from (lark.literal(word) for name in types for word in words.get(name, ()))


def _in_quotes(text: str) -> str:
    return "'" + json.dumps(text, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"


def _with_definitions(schema: Schema, root: Schema) -> Schema:
    return {**schema, **{key: root[key] for key in _DEFINITIONS if key in root}}


def _choices(schema: Schema) -> Sequence[Any]:
    return [schema["const"]] if "const" in schema else listed(schema, "enum")


def _lengths(schema: Schema) -> list[str]:
    least, most = _bounds(schema, "Length")
    return [f"(?s:.{{{least},{'' if most is None else most}}})"] if least or most is not None else []


def _bounds(schema: Schema, of: str) -> tuple[int, int | None]:
    least, most = (schema.get(f"{end}{of}") for end in ("min", "max"))
    return least if isinstance(least, int) else 0, most if isinstance(most, int) else None


class _Dialect:
    """JSON with bare keys, and strings between marks in which nothing is escaped."""

    def __init__(self, lark: Lark, root: Schema, marks: Sequence[str]) -> None:
        self._lark, self._root, (self._opening, self._closing) = lark, root, marks
        self._known: dict[str, str] = {}

    def object(self, schema: Schema) -> str:
        schema = resolve(schema, self._root)
        if _is_open(schema):
            return self._any()
        required = _names(schema, "required")
        # As the chat templates write them.
        ordered = sorted(mapped(schema, "properties").items(), key=lambda item: item[0].casefold())
        items = [(key, f"{self._key(key)} {self.value(value)}") for key, value in ordered]
        body = self._lark.separated(
            [item for key, item in items if key in required], [item for key, item in items if key not in required], '","'
        )
        return f'"{{" {body} "}}"'

    def value(self, schema: Any) -> str:
        schema = resolve(schema, self._root) if isinstance(schema, Mapping) else {}
        key = json.dumps(schema, sort_keys=True)
        self._lark.spend(len(key))
        if key not in self._known:
            name = self._known[key] = self._lark.new_name("value")
            self._lark.define(name, one_of(self._alternatives(schema)))
        return self._known[key]

    def _alternatives(self, schema: Schema) -> Iterator[str]:
        if choices := _choices(schema):
            yield from map(self._constant, choices)
            return
        if nested := [item for key in ("anyOf", "oneOf") for item in listed(schema, key)]:
            yield from map(self.value, nested)
            return
        types = types_of(schema, self._root)
        for name in types or JSON_TYPES:
            yield self._of_type(name, schema)

    def _of_type(self, name: str, schema: Schema) -> str:
        if name == "string":
            return f"{self._lark.literal(self._opening)} {self._lark.until(self._closing, also=_lengths(schema))}"
        if name == "object":
            return self.object(schema) if "properties" in schema else self._any()
        if name == "array":
            item = self.value(schema.get("items", {}))
            least, most = _bounds(schema, "Items")
            more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else max(most - 1, 0)}}}'
            body = "" if most == 0 else f"{item} {more}"
            return f'"[" {body if least else f"({body})?" if body else ""} "]"'
        return self._lark.json({key: value for key, value in {**schema, "type": name}.items() if key not in _DEFINITIONS})

    def _any(self) -> str:
        entry = f"/[A-Za-z_]\\w*:/ {self.value({})}"
        return f'"{{" ({entry} ("," {entry})*)? "}}"'

    def _key(self, key: str) -> str:
        return self._lark.literal(f"{key}:" if _PLAIN_KEY.issuperset(key) else f"{self._opening}{key}{self._closing}:")

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            return self._lark.literal(f"{self._opening}{value}{self._closing}")
        return self._lark.literal(json.dumps(value))
