"""How short the shortest instance of a JSON schema may be: there is none where it refers to itself without end."""

from __future__ import annotations

import json
import re
from math import inf
from typing import Any

from jaxserve.grammar.tree import Schema, children, listed, mapped, pointed_at, types

LONGEST = 1_000_000  # characters that an answer may need: what a grammar forces is computed at once, however long it is

_PASSES = 20
_ATOM = re.compile(r"\\.|\{(?P<times>\d{1,9})(?:,\d*)?\}|.", re.DOTALL)
_LEAST = {"null": 4, "boolean": 4}


def shortest(root: Any) -> float:
    """Characters that no instance has less than, as far as can be seen; infinite if nothing that ends is an instance.

    Infinite, too, for schemas in which references lead back so often that it cannot be told soon.
    """
    targets = _targets(root)
    lengths = dict.fromkeys(targets, inf)
    for _ in range(_PASSES):
        before = dict(lengths)
        for reference in reversed(targets):  # what one leads to before itself, but for those that lead back
            lengths[reference] = _of(targets[reference], lengths)
        if lengths == before:
            return _of(root, lengths)
    return inf


def _targets(root: Any) -> dict[str, Any]:
    """What references that can be reached lead to, in the order in which they are met."""
    targets: dict[str, Any] = {}
    waiting = [root]
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        waiting += [inner for _, inner in children(schema)]
        reference = schema.get("$ref", "")
        found = pointed_at(root, reference)
        if found is not None and reference not in targets:
            targets[reference] = found[1]
            waiting.append(found[1])
    return targets


def _of(schema: Any, lengths: dict[str, float]) -> float:
    if not isinstance(schema, dict):
        return inf if schema is False else 1
    bounds: list[float] = [1]
    if "$ref" in schema:
        bounds.append(lengths.get(schema["$ref"], 1))
    if "const" in schema:
        bounds.append(_written(schema["const"]))
    if "enum" in schema:
        bounds.append(min(map(_written, listed(schema, "enum")), default=inf))
    for name in ("anyOf", "oneOf"):
        if name in schema:
            bounds.append(min((_of(inner, lengths) for inner in listed(schema, name)), default=inf))
    bounds += [_of(inner, lengths) for inner in listed(schema, "allOf")]
    kinds = types(schema)
    if kinds:
        bounds.append(min(_of_type(kind, schema, lengths) for kind in kinds))
    return max(bounds)


def _of_type(kind: Any, schema: Schema, lengths: dict[str, float]) -> float:
    match kind:
        case "string":
            pattern = schema.get("pattern")
            return 2 + max(_count(schema, "minLength"), least_repeated(pattern) if isinstance(pattern, str) else 0)
        case "array":
            first = listed(schema, "prefixItems") or listed(schema, "items")
            count = _count(schema, "minItems")
            further = 0 if isinstance(schema.get("items"), list) else _of(schema.get("items", True), lengths)
            inner = sum(_of(item, lengths) for item in first[:count])
            return 2 + inner + (further * (count - len(first)) if count > len(first) else 0) + max(count - 1, 0)
        case "object":
            properties, names = mapped(schema, "properties"), {*filter(_is_text, listed(schema, "required"))}
            other = True if "patternProperties" in schema else schema.get("additionalProperties", True)
            return 2 + sum(len(name) + 3 + _of(properties.get(name, other), lengths) for name in names) + max(len(names) - 1, 0)
        case _:
            return _LEAST.get(kind, 1) if _is_text(kind) else 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _count(schema: Schema, name: str) -> int:
    value = schema.get(name)
    return value if isinstance(value, int) and value > 0 else 0


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
            groups[-1] += last
        elif atom["times"]:
            groups[-1] += last * (int(atom["times"]) - 1)
            last *= int(atom["times"])
        else:
            last = 1
            groups[-1] += 1
    return sum(groups)
