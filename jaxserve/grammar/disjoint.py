"""Whether schemas of a `oneOf` can never hold at once, so that it is the same as `anyOf`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jaxserve.grammar.tree import Schema, listed, mapped, pointed_at, types

_DEPTH = 6  # references, unions and properties that are looked into, one inside another
_WORK = 200_000  # values that are looked at, of one document: some tenths of a second; what is not told by then may overlap
_TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})


@dataclass(slots=True)
class _Facts:
    """What holds wherever a schema does.

    Attributes:
        constants: of each list of values that it must be in, these as JSON.
        unions: lists of schemas of which one holds.
        properties: schemas of its properties, by name.
    """

    kinds: frozenset[str] = _TYPES
    constants: list[frozenset[str]] = field(default_factory=list)
    unions: list[list[Any]] = field(default_factory=list)
    required: set[str] = field(default_factory=set)
    properties: dict[str, list[Any]] = field(default_factory=dict)


class Unions:
    """Looks into those of one document.

    Seen are types, constants, and those of properties that one of two schemas requires: the tags of tagged unions.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = _WORK
        self._known: dict[int, _Facts] = {}

    def overlapping(self, schemas: list[Any]) -> tuple[int, int] | None:
        """Places of the first two schemas that may both hold for one value, as far as can be seen; None if no two can."""
        for first, one in enumerate(schemas):
            for second in range(first + 1, len(schemas)):
                if not self._disjoint(one, schemas[second], _DEPTH):
                    return first, second
        return None

    def _disjoint(self, one: Any, other: Any, depth: int) -> bool:
        if one is False or other is False:
            return True
        self._left -= 1
        if depth == 0 or self._left < 0:
            return False
        ones, others = self._facts(one), self._facts(other)
        kinds = ones.kinds & others.kinds
        if not kinds or any(self._apart(a, b) for a in ones.constants for b in others.constants):
            return True
        for unions, rest in ((ones.unions, other), (others.unions, one)):
            if any(all(self._disjoint(option, rest, depth - 1) for option in union) for union in unions):
                return True
        return kinds == {"object"} and any(
            self._disjoint(a, b, depth - 1)
            for name in sorted(ones.required | others.required)
            for a in ones.properties.get(name, ())
            for b in others.properties.get(name, ())
        )

    def _apart(self, one: frozenset[str], other: frozenset[str]) -> bool:
        self._left -= min(len(one), len(other)) // 32  # sets are quick
        return one.isdisjoint(other)

    def _facts(self, schema: Any) -> _Facts:
        facts = self._known.get(id(schema))
        if facts is None:
            facts = self._known[id(schema)] = _Facts()
            for part in self._parts(schema, _DEPTH):
                self._add(facts, part)
        return facts

    def _add(self, facts: _Facts, part: Schema) -> None:
        kinds = types(part)
        if kinds is not None:
            facts.kinds &= {"number" if kind == "integer" else kind for kind in kinds if isinstance(kind, str)}
        for values in _values(part):
            facts.constants.append(frozenset(map(_normal, values)))
            facts.kinds &= frozenset(map(_type_of, values))
            self._left -= len(values)
        facts.unions += [listed(part, name) for name in ("anyOf", "oneOf") if name in part]
        facts.required |= {name for name in listed(part, "required") if isinstance(name, str)}
        for name, inner in mapped(part, "properties").items():
            facts.properties.setdefault(name, []).append(inner)
        self._left -= 1 + len(facts.required) + len(facts.properties)

    def _parts(self, schema: Any, depth: int) -> Iterator[Schema]:
        """Schemas that hold together wherever this one does."""
        if not isinstance(schema, dict) or depth == 0 or self._left < 0:
            return
        yield schema
        target = pointed_at(self._root, schema.get("$ref"))
        for inner in (*(() if target is None else (target[1],)), *listed(schema, "allOf")):
            yield from self._parts(inner, depth - 1)


def _values(part: Schema) -> Iterator[list[Any]]:
    """The values that a part allows, where it lists them."""
    if "const" in part:
        yield [part["const"]]
    if "enum" in part:
        yield listed(part, "enum")


def _type_of(value: Any) -> str:
    kinds: tuple[tuple[Any, str], ...] = ((bool, "boolean"), (str, "string"), (list, "array"), (dict, "object"))
    return "null" if value is None else next((name for kind, name in kinds if isinstance(value, kind)), "number")


def _normal(value: Any) -> str:
    """Its JSON; equal for numbers that are, such as 1 and 1.0."""
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, sort_keys=True)
