"""The tools of a request, as parsers and grammars need them, and values typed by a tool's schema."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxserve.errors import InvalidRequestError

Schema = Mapping[str, Any]
JSON_TYPES = ("string", "number", "boolean", "null", "array", "object")
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
_NOTHING = object()
_MAX_REFERENCES = 16
_MAX_SCALAR = 5000  # characters of a number, which Python limits to 4,300 digits


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call; `parameters` is the JSON schema of its arguments, an object."""

    name: str
    parameters: Schema

    def property_schema(self, key: str) -> Schema | None:
        """The schema of one argument; None where the tool says nothing of it."""
        schema = mapped(resolve(self.parameters, self.parameters), "properties").get(key)
        return resolve(schema, self.parameters) if isinstance(schema, Mapping) else None

    def takes(self, keys: Collection[str]) -> bool:
        """Whether the schema names all of these arguments, and requires no other."""
        schema = resolve(self.parameters, self.parameters)
        required = {name for name in listed(schema, "required") if isinstance(name, str)}
        return mapped(schema, "properties").keys() >= set(keys) >= required


def read_tools(tools: Iterable[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Tools as chat completions have them (``{"type": "function", "function": {...}}``) or as responses do: flat.

    Raises InvalidRequestError for one that is no function, has no usable name or the name of another.
    """
    read: dict[str, Tool] = {}
    for place, tool in enumerate(tools):
        field = f"tools[{place}]"
        if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
            raise InvalidRequestError(f"{field} must be an object of the type function", param=field)
        function = tool.get("function", tool)
        field += ".function" if "function" in tool else ""
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidRequestError(f"{field}.name must be 1 to 128 letters, digits, _, - or .", param=f"{field}.name")
        if name in read:
            raise InvalidRequestError(f"{field}.name {name} is the name of another tool, too", param=f"{field}.name")
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, Mapping):
            raise InvalidRequestError(f"{field}.parameters must be a JSON schema, an object", param=f"{field}.parameters")
        read[name] = Tool(name, parameters)
    return tuple(read.values())


def resolve(schema: Schema, root: Schema) -> Schema:
    """The schema that a chain of local `$ref` leads to; what lies beside a `$ref` is left out."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        target: Any = root
        for part in reference[1:].split("/")[1:]:
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            return {}
        schema = target
    return {}


def types_of(schema: Schema | None, root: Schema) -> tuple[str, ...]:
    """The JSON types that a schema allows, in its order; none where it does not say."""
    return tuple(dict.fromkeys(_types(schema, root, set()))) if schema is not None else ()


def listed(schema: Schema, name: str) -> Sequence[Any]:
    """A keyword's list; empty where it has none, or something else."""
    value = schema.get(name)
    return value if isinstance(value, list | tuple) else ()


def mapped(schema: Schema, name: str) -> Mapping[str, Any]:
    """A keyword's object; empty where it has none, or something else."""
    value = schema.get(name)
    return value if isinstance(value, Mapping) else {}


def _types(schema: Schema, root: Schema, seen: set[int]) -> list[str]:
    schema = resolve(schema, root)
    if id(schema) in seen:  # a choice of itself
        return []
    seen.add(id(schema))
    declared = schema.get("type")
    types = [declared] if isinstance(declared, str) else [name for name in listed(schema, "type") if isinstance(name, str)]
    if not types:
        types = [_type_name(value) for value in ([schema["const"]] if "const" in schema else listed(schema, "enum"))]
    if not types:
        choices = [item for key in ("anyOf", "oneOf", "allOf") for item in listed(schema, key) if isinstance(item, Mapping)]
        types = [name for choice in choices for name in _types(choice, root, seen)]
    return [*types, "null"] if schema.get("nullable") else types


def typed_value(text: str, types: Sequence[str]) -> Any:
    """The value that a text stands for where one of `types` is asked for; the text itself where it is none of them."""
    stripped = text.strip()
    for name in types:
        read = (_CONTAINERS if len(stripped) > _MAX_SCALAR else _READERS).get(name)
        value = read(stripped) if read else _NOTHING
        if value is not _NOTHING:
            return value
    return text


def typed_json(text: str, types: Sequence[str], *, reads_json: bool) -> str:
    """The same as JSON. JSON of such a type stays as it is written; `reads_json`: so does any where there are no types."""
    stripped = text.strip()
    try:
        name = _type_name(json.loads(stripped, parse_constant=_refuse))
    except (ValueError, RecursionError):
        name = ""
    if name and (name in types or (name == "integer" and "number" in types) or (not types and reads_json)):
        return stripped
    return json.dumps(typed_value(text, types), ensure_ascii=False)


def json_or_text(text: str) -> Any:
    """What a text is as JSON; the text where it is none."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _type_name(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _integer(text: str) -> Any:
    value = _number(text)
    return int(value) if value is not _NOTHING and value == int(value) else _NOTHING


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return _NOTHING
    return value if math.isfinite(value) else _NOTHING


def _boolean(text: str) -> Any:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), _NOTHING)


def _null(text: str) -> Any:
    return None if text.lower() in ("null", "none") else _NOTHING


def _container(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = json_or_text(text)
        if isinstance(value, str):
            try:
                value = ast.literal_eval(text)  # some templates write str() of a dict
                json.dumps(value, allow_nan=False)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                return _NOTHING
        return value if isinstance(value, kind) else _NOTHING

    return read


_CONTAINERS: Mapping[str, Callable[[str], Any]] = {"object": _container(dict), "array": _container(list)}
_READERS: Mapping[str, Callable[[str], Any]] = {
    **_CONTAINERS,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "null": _null,
}
