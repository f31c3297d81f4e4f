"""How short the shortest instance of a JSON schema may be: there is none where it refers to itself without end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from jaxserve.grammar.budget import Budget
from jaxserve.grammar.tree import References, Schema, children, listed, mapped, types

LONGEST = 1_000_000  # characters that an answer may need: what a grammar forces is computed at once, however long it is

_PASSES = 20
_COUNTLESS = LONGEST + 1  # larger counts make no difference
_ATOM = re.compile(r"\\.|\{(?P<times>[0-9]{1,9})(?:,\d*)?\}|.", re.DOTALL)
_LEAST = {"null": 4, "boolean": 4}


def shortest(root: Any, budget: Budget) -> float:
    """Characters that no instance has less than, as far as can be seen; infinite if nothing that ends is an instance.

    Infinite, too, for schemas in which references lead back so often that it cannot be told soon. Raises TooMuchWorkError.
    """
    lengths = _Lengths(root, budget)
    return lengths.of(root) if any(not lengths.improve() for _ in range(_PASSES)) else inf


@dataclass(slots=True)
class _Node:
    """A schema.

    Attributes:
        targets: the one that its reference leads to, if there is one.
        constant: characters that its constants need.
        pattern: characters that its pattern needs.
        cost: steps that computing its length takes.
    """

    schema: Schema
    targets: tuple[Any, ...]
    constant: float
    pattern: int
    cost: int


class _Lengths:
    """The lengths of all schemas of a document, each of them computed from those of the schemas in it."""

    def __init__(self, root: Any, budget: Budget) -> None:
        self._budget = budget
        self._references = References(root)
        self._lengths: dict[int, float] = {}
        self._nodes = list(self._from_within(root))

    def of(self, schema: Any) -> float:
        """Infinite until something is known of it."""
        if isinstance(schema, dict):
            return self._lengths.get(id(schema), inf)
        return inf if schema is False else 1

    def improve(self) -> bool:
        """Compute all lengths once more; whether one changed."""
        changed = False
        for node in self._nodes:
            self._budget.spend(node.cost)
            length = self._length(node)
            if length != self._lengths.get(id(node.schema), inf):
                self._lengths[id(node.schema)] = length
                changed = True
        return changed

    def _from_within(self, root: Any) -> Iterator[_Node]:
        """Every schema once, after its inner schemas and its reference's target, except where references form a cycle."""
        seen: set[int] = set()
        waiting: list[tuple[Any, _Node | None]] = [(root, None)]
        while waiting:
            schema, node = waiting.pop()
            if node is not None:
                yield node
                continue
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            seen.add(id(schema))
            found = self._references.target(schema)
            inner = [one for _, one in children(schema)]
            cost = 1 + len(inner) + len(listed(schema, "required")) + len(listed(schema, "enum"))
            self._budget.spend(cost)
            targets = () if found is None else (found[1],)
            pattern = schema.get("pattern")
            needed = least_repeated(pattern) if isinstance(pattern, str) else 0
            waiting.append((schema, _Node(schema, targets, _of_constants(schema), needed, cost)))
            waiting += [(one, None) for one in (*targets, *inner)]

    def _length(self, node: _Node) -> float:
        schema = node.schema
        bounds = [node.constant, *map(self.of, node.targets), *map(self.of, listed(schema, "allOf"))]
        for name in ("anyOf", "oneOf"):
            if name in schema:
                bounds.append(min(map(self.of, listed(schema, name)), default=inf))
        kinds = types(schema)
        if kinds:
            bounds.append(min(self._of_type(kind, node) for kind in {kind if _is_text(kind) else "" for kind in kinds}))
        return max(bounds)

    def _of_type(self, kind: str, node: _Node) -> float:
        schema = node.schema
        match kind:
            case "string":
                return 2 + max(_count(schema, "minLength"), node.pattern)
            case "array":
                first = listed(schema, "prefixItems") or listed(schema, "items")
                count = _count(schema, "minItems")
                further = 0 if isinstance(schema.get("items"), list) else self.of(schema.get("items", True))
                inner = sum(self.of(item) for item in first[:count])
                return 2 + inner + (further * (count - len(first)) if count > len(first) else 0) + max(count - 1, 0)
            case "object":
                properties, names = mapped(schema, "properties"), {*filter(_is_text, listed(schema, "required"))}
                other = True if "patternProperties" in schema else schema.get("additionalProperties", True)
                return 2 + sum(len(name) + 3 + self.of(properties.get(name, other)) for name in names) + max(len(names) - 1, 0)
            case _:
                return _LEAST.get(kind, 1)


def _of_constants(schema: Schema) -> float:
    """Characters that its constants need."""
    bounds: list[float] = [1]
    if "const" in schema:
        bounds.append(_written(schema["const"]))
    if "enum" in schema:
        bounds.append(min(map(_written, listed(schema, "enum")), default=inf))
    return max(bounds)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _count(schema: Schema, name: str) -> int:
    value = schema.get(name)
    return min(value, _COUNTLESS) if isinstance(value, int) and value > 0 else 0


def _written(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def least_repeated(pattern: str) -> int:
    """Characters of a regex, classes as one, with what it repeats written out as often as it must come at least."""
    groups, last, in_class = [0], 0, False
    for atom in _ATOM.finditer(pattern):
        if in_class or atom[0] == "[":
            in_class, last = atom[0] != "]", 1
            groups[-1] += not in_class
        elif atom[0] == "(":
            groups.append(0)
        elif atom[0] == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] = min(groups[-1] + last, _COUNTLESS)
        elif atom["times"]:
            groups[-1] = min(groups[-1] + last * (int(atom["times"]) - 1), _COUNTLESS)
            last = min(last * int(atom["times"]), _COUNTLESS)
        else:
            last = 1
            groups[-1] += 1
    return sum(groups)
