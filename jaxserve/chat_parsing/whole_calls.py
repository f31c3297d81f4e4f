"""Calls of templates that can be read only when their region is whole: the rest of what a template may say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jaxserve.chat_parsing.automaton import Pattern
from jaxserve.chat_parsing.calls import CallReader, CallSink, MalformedCallError
from jaxserve.chat_parsing.literals import Dialect, Literals, read_dialect
from jaxserve.chat_parsing.search import find_all
from jaxserve.chat_parsing.stream import Meter, TextStream
from jaxserve.chat_parsing.template import Field, Place
from jaxserve.chat_parsing.tools import Tool, typed_value, types_of

_PASSES = 3  # over the text of a region: it is translated, parsed and written


class WholeReader(CallReader):
    """A region whose calls are read when it is whole."""

    def __init__(self, sink: CallSink, opening: str, field: Field, captures: Mapping[str, str]) -> None:
        super().__init__(sink, opening)
        self._field, self._captures = field, captures

    def close(self, marker: str = "") -> str:
        shape = self._field.shape
        assert shape is not None
        try:
            text = self._text.take()
            self._sink.meter.examined += _PASSES * len(text)
            content = _parse_region(text, self._field)
            items = content if shape.each else [content]
            scopes = [{**self._captures, "content": item} for item in items]
            calls = [(_at(scope, shape.name), _at(scope, shape.arguments), shape.id and _at(scope, shape.id)) for scope in scopes]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise MalformedCallError("the region is not what the template says") from error
        for name, arguments, call_id in calls:
            if not isinstance(name, str):
                raise MalformedCallError("the call's name is no string")
            self._sink.begin(name, call_id if isinstance(call_id, str) else None)
            self._sink.arguments(_arguments_text(arguments, self._sink.tool(name)))
            self._end()
        return super().close()

    def _step(self) -> bool:
        return False


def _parse_region(text: str, field: Field) -> Any:
    if field.tag is not None:
        return _parse_tags(text, field.tag, field.options)
    return parse_content(text, field.kind, field.options, field.dialect)


def parse_content(text: str, kind: str, options: Mapping[str, Any], dialect: Dialect | None = None) -> Any:
    """Parse the text of a region by its content type. Raises ValueError if it is not of that type."""
    stripped = text.strip() if options.get("strip", True) else text
    match kind:
        case "text":
            return stripped
        case "int":
            return int(stripped)
        case "float":
            return float(stripped)
        case "bool":
            return stripped.lower() in ("true", "1")
        case "json":
            return _parse_json(text, stripped, options, dialect or read_dialect(options))
        case "xml-inline":
            return _parse_tags(text, Pattern(options["tag_pattern"]), options)
        case "kv-lines":
            return _parse_lines(text, options)
        case _:
            raise ValueError(f"there is no content type {kind}")


def _parse_json(text: str, stripped: str, options: Mapping[str, Any], dialect: Dialect | None) -> Any:
    if dialect is not None:
        stream = TextStream(Meter())
        stream.push(f"{text}\n")
        text = Literals(stream, dialect).translate() + stream.take()
    try:
        return json.loads(text)
    except ValueError:
        if options.get("allow_non_json"):
            return stripped
        raise


def _parse_tags(text: str, tag: Pattern, options: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, list[Any]] = {}
    for found in find_all(tag, text):
        values.setdefault(found.groups["key"], []).append(_parse_value(found.groups.get("value", ""), options))
    keeps_all = options.get("merge_duplicates", False)
    return {key: items if keeps_all and len(items) > 1 else items[-1] for key, items in values.items()}


def _parse_lines(text: str, options: Mapping[str, Any]) -> dict[str, Any]:
    strips = options.get("strip", True)
    pairs = (line.partition(options.get("kv_sep", ":")) for line in text.split(options.get("line_sep", "\n")))
    present = ((key.strip() if strips else key, value.strip() if strips else value) for key, sign, value in pairs if sign)
    return {key: _parse_value(value, options) for key, value in present}


def _parse_value(text: str, options: Mapping[str, Any]) -> Any:
    parser = options.get("value_parser")
    return text if parser is None else parse_content(text, parser.get("name", "text"), parser.get("args", {}))


def _at(scope: Mapping[str, Any], place: Place) -> Any:
    value: Any = scope
    for key in place:
        if not isinstance(value, Mapping):
            raise ValueError(f"there is no {key}")
        value = value[key]
    return value


def _arguments_text(arguments: Any, tool: Tool | None) -> str:
    if isinstance(arguments, str):  # JSON in a string
        return arguments
    if tool is not None and isinstance(arguments, dict):
        typed = ((key, types_of(tool.property_schema(key), tool.parameters), value) for key, value in arguments.items())
        arguments = {key: typed_value(value, types) if isinstance(value, str) else value for key, types, value in typed}
    return json.dumps(arguments, ensure_ascii=False)
