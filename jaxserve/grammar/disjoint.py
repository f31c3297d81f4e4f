"""Whether schemas of a `oneOf` can never hold at once, so that it is the same as `anyOf`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jaxserve.grammar.budget import Budget
from jaxserve.grammar.tree import References, Schema, listed, mapped, types

_DEPTH = 6  # references, unions and properties that are looked into, one inside another
_TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})


@dataclass(slots=True)
class _Facts:
    """What holds wherever a schema does.

    Attributes:
        constants: the values that it may be, as JSON; None where it does not list them.
        unions: lists of schemas of which one holds.
        properties: schemas of its properties, by name.
    """

    kinds: frozenset[str] = _TYPES
    constants: frozenset[str] | None = None
    unions: list[list[Any]] = field(default_factory=list)
    required: set[str] = field(default_factory=set)
    properties: dict[str, list[Any]] = field(default_factory=dict)


class Unions:
    """Looks into those of one document.

    Seen are types, constants, and those of properties that one of two schemas requires: the tags of tagged unions.
    """

    def __init__(self, root: Any, budget: Budget) -> None:
        self._references = References(root)
        self._budget = budget
        self._known: dict[int, _Facts] = {}
        self._listed: dict[int, tuple[frozenset[str], frozenset[str]]] = {}

    def overlapping(self, schemas: list[Any]) -> tuple[int, int] | None:
        """Places of the first two schemas that may both hold for one value, as far as can be seen; None if no two can.

        Raises TooMuchWorkError.
        """
        for first, one in enumerate(schemas):
            for second in range(first + 1, len(schemas)):
                if not self._disjoint(one, schemas[second], _DEPTH):
                    return first, second
        return None

    def _disjoint(self, one: Any, other: Any, depth: int) -> bool:
        self._budget.spend()
        if one is False or other is False:
            return True
        if depth == 0:
            return False
        ones, others = self._facts(one), self._facts(other)
        kinds = ones.kinds & others.kinds
        if not kinds or self._apart(ones.constants, others.constants):
            return True
        for unions, rest in ((ones.unions, other), (others.unions, one)):
            if any(all(self._disjoint(option, rest, depth - 1) for option in union) for union in unions):
                return True
        if kinds != {"object"}:
            return False
        self._budget.spend((len(ones.required) + len(others.required)) // 8)
        return any(
            self._disjoint(a, b, depth - 1)
            for name in sorted(ones.required | others.required)
            for a in ones.properties.get(name, ())
            for b in others.properties.get(name, ())
        )

    def _apart(self, one: frozenset[str] | None, other: frozenset[str] | None) -> bool:
        if one is None or other is None:
            return False
        self._budget.spend(min(len(one), len(other)) // 32)  # sets are quick
        return one.isdisjoint(other)

    def _facts(self, schema: Any) -> _Facts:
        facts = self._known.get(id(schema))
        if facts is None:
            facts = self._known[id(schema)] = _Facts()
            for part in self._parts(schema):
                self._add(facts, part)
        return facts

    def _add(self, facts: _Facts, part: Schema) -> None:
        kinds = types(part)
        if kinds is not None:
            self._budget.spend(len(kinds))
            facts.kinds &= {"number" if kind == "integer" else kind for kind in kinds if isinstance(kind, str)}
        if "const" in part or "enum" in part:
            constants, of_kinds = self._constants(part)
            facts.constants = constants if facts.constants is None else facts.constants & constants
            facts.kinds &= of_kinds
        facts.unions += [listed(part, name) for name in ("anyOf", "oneOf") if name in part]
        required, properties = listed(part, "required"), mapped(part, "properties")
        self._budget.spend(1 + len(required) + len(properties))
        facts.required |= {name for name in required if isinstance(name, str)}
        for name, inner in properties.items():
            facts.properties.setdefault(name, []).append(inner)

    def _constants(self, part: Schema) -> tuple[frozenset[str], frozenset[str]]:
        """The values that a part lists, and their types."""
        found = self._listed.get(id(part))
        if found is None:
            lists = list(_values(part))
            self._budget.spend(sum(map(len, lists)))
            constants = frozenset.intersection(*(frozenset(map(_normal, values)) for values in lists))
            found = constants, frozenset.intersection(*(frozenset(map(_type_of, values)) for values in lists))
            self._listed[id(part)] = found
        self._budget.spend(1 + len(found[0]) // 32)
        return found

    def _parts(self, schema: Any) -> Iterator[Schema]:
        """Schemas that hold together wherever this one does, each of them once."""
        seen: set[int] = set()
        waiting = [(schema, _DEPTH)]
        while waiting:
            schema, depth = waiting.pop()
            if not isinstance(schema, dict) or depth == 0 or id(schema) in seen:
                continue
            seen.add(id(schema))
            self._budget.spend()
            yield schema
            target = self._references.target(schema)
            inner = (*(() if target is None else (target[1],)), *listed(schema, "allOf"))
            self._budget.spend(len(inner))
            waiting += [(one, depth - 1) for one in reversed(inner)]


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
