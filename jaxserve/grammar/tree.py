"""JSON schemas as trees: where their parts are, how people write such a place, and where references lead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

Path = tuple[str | int, ...]
Schema = dict[str, Any]

_OF_ONE = ("items", "additionalItems", "additionalProperties")
_OF_LIST = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_OF_MAP = ("properties", "patternProperties")
_PLAIN = re.compile(r"[\w$-]+")
_LONGEST_STEP = 80  # characters of a name that a written path shows
_MOST_STEPS = 24  # a written path shows as many
_INDEX = re.compile("[0-9]{1,9}")  # no list is longer


def children(schema: Schema) -> Iterator[tuple[Path, Any]]:
    """Schemas directly inside a schema, each with the steps that lead there."""
    for name in _OF_LIST:
        yield from (((name, place), inner) for place, inner in enumerate(listed(schema, name)))
    for name in _OF_ONE:
        if name in schema and not isinstance(schema[name], list):
            yield (name,), schema[name]
    for name in _OF_MAP:
        yield from (((name, key), inner) for key, inner in mapped(schema, name).items())


def listed(schema: Schema, name: str) -> list[Any]:
    """A keyword's list; empty where it has none."""
    value = schema.get(name)
    return value if isinstance(value, list) else []


def mapped(schema: Schema, name: str) -> dict[str, Any]:
    """A keyword's object; empty where it has none."""
    value = schema.get(name)
    return value if isinstance(value, dict) else {}


def types(schema: Schema) -> list[Any] | None:
    """What `type` lists; None where it is left out."""
    if "type" not in schema:
        return None
    return schema["type"] if isinstance(schema["type"], list) else [schema["type"]]


def written(path: Path) -> str:
    """``properties.a.items[0]``; names that are no words go into brackets, and long ones and the end of long paths are cut."""
    text = ""
    for step in path[:_MOST_STEPS]:
        if isinstance(step, str) and len(step) <= _LONGEST_STEP and _PLAIN.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{step!r:.{_LONGEST_STEP}}]"
    return text + ("..." if len(path) > _MOST_STEPS else "")


def pointed_at(document: Any, reference: Any) -> tuple[Path, Any] | None:
    """Where a reference, ``#`` or ``#/...``, leads in its document, and what is there; None if it leads nowhere."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    path: list[str | int] = []
    for part in unquote(reference).split("/")[1:]:
        step: str | int = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, list) and _INDEX.fullmatch(part):
            step = int(part)
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None
        path.append(step)
    return tuple(path), document


class References:
    """Where the references of one document lead; each spelling is followed once."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._known: dict[str, tuple[Path, Any] | None] = {}

    def target(self, schema: Schema) -> tuple[Path, Any] | None:
        """Where the `$ref` of a schema leads, and what is there; None if there is none or it leads nowhere."""
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return None
        if reference not in self._known:
            self._known[reference] = pointed_at(self._document, reference)
        return self._known[reference]
