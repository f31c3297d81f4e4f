"""JSON schemas as llguidance is to compile them: what changes nothing is taken out, what it would not hold to is refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any, NoReturn

from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.budget import MOST_STEPS, Budget, TooMuchWorkError
from jaxserve.grammar.disjoint import Unions
from jaxserve.grammar.formats import TIMES
from jaxserve.grammar.shortest import LONGEST, shortest
from jaxserve.grammar.tree import Path, References, Schema, children, listed, mapped, types, written

MAX_DEPTH = 100  # llguidance's reader of JSON takes 127 with what is around a schema
MAX_PROPERTIES = 2000  # of one object; compiling takes their square
MAX_PATTERNS = 64  # of one object; each is compared with each
MAX_UNION = 200  # schemas of one `oneOf`; each is compared with each
MAX_EXACT = 2**53 - 1  # larger integers are not the same for all who read JSON (RFC 8259, 6)

_ANYTHING: tuple[Any, ...] = (True, {})
_ENFORCED = frozenset({"duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
_FORMATS = _ENFORCED | {
    *TIMES,
    *("idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template"),
    *("json-pointer", "relative-json-pointer", "regex"),
}
_COUNTS = frozenset(f"{end}{of}" for end in ("min", "max") for of in ("Items", "Length", "Properties"))

_COUNTLESS = 2**31 - 1  # no output has as many items, characters or properties


def _says_nothing(value: Any) -> bool:
    """Of keywords that hold a schema, or map names to schemas or lists of names: whether anything passes."""
    if isinstance(value, dict):
        return all(inner in _ANYTHING or inner == [] for inner in value.values())
    return value is True


def _one_item_at_most(schema: Schema) -> bool:
    most = schema.get("maxItems")
    return isinstance(most, int) and most <= 1


# Keywords that are not supported, and where they change nothing.
_UNSUPPORTED: Mapping[str, Callable[[Schema, Any], bool]] = MappingProxyType(
    {
        "not": lambda _, value: value is False,
        "if": lambda schema, _: all(schema.get(name, True) in _ANYTHING for name in ("then", "else")),
        "then": lambda schema, value: "if" not in schema or value in _ANYTHING,
        "else": lambda schema, value: "if" not in schema or value in _ANYTHING,
        "contains": lambda schema, _: schema.get("minContains") == 0 and "maxContains" not in schema,
        "minContains": lambda schema, value: "contains" not in schema or value == 0,
        "maxContains": lambda schema, _: "contains" not in schema,
        "propertyNames": lambda _, value: value in (*_ANYTHING, {"type": "string"}),
        "dependencies": lambda _, value: _says_nothing(value),
        "dependentRequired": lambda _, value: _says_nothing(value),
        "dependentSchemas": lambda _, value: _says_nothing(value),
        "uniqueItems": lambda schema, value: value is False or _one_item_at_most(schema),
        "unevaluatedItems": lambda _, value: value in _ANYTHING,
        "unevaluatedProperties": lambda _, value: value in _ANYTHING,
        "$dynamicRef": lambda *_: False,
        "$recursiveRef": lambda *_: False,
        "$dynamicAnchor": lambda *_: True,  # only $dynamicRef looks for them
        "$recursiveAnchor": lambda *_: True,
    }
)


def prepared(root: Any, param: str, *, place: str = "", closed: bool = False, budget: Budget | None = None) -> Any:
    """The schema, changed in place to what llguidance is to compile: every instance of that is one of what was given.

    Keywords that change nothing as they are given are taken out, and so are formats that JSON Schema does not define, which are
    annotations. `oneOf` becomes `anyOf` where no two of its schemas can hold at once. Bounds of numbers are drawn in to those
    that all readers of JSON hold exactly.

    Args:
        param: the field that the schema is in, for errors.
        place: where in the field it is.
        closed: whether objects that do not say so have no properties but those they name.
        budget: steps that may be taken, shared by the schemas of a request; by default this one has its own.

    Raises InvalidRequestError naming the keyword, with its path, that is not supported, too large, or cannot be satisfied.
    """
    prefix = f"{param}: {place}: " if place else f"{param}: "
    budget = Budget() if budget is None else budget
    try:
        _Preparation(root, param, prefix, closed, budget, References(root)).run()
        least = shortest(root, budget)
    except TooMuchWorkError as error:
        what = f"{prefix}the schema takes more than {MOST_STEPS} comparisons to analyse"
        raise InvalidRequestError(what, param=param) from error
    if least > LONGEST:
        why = "nothing that ends is allowed" if least == inf else f"no answer has less than {LONGEST} characters"
        raise InvalidRequestError(f"{param} cannot be satisfied: {why}", param=param)
    return root


@dataclass(slots=True)
class _Preparation:
    """Of one document, in place; only what can be reached from its root counts."""

    root: Any
    param: str
    prefix: str
    closed: bool
    budget: Budget
    references: References

    def run(self) -> None:
        waiting: deque[tuple[Path, Any]] = deque([((), self.root)])
        seen: set[int] = set()
        unions: list[tuple[Path, Schema]] = []
        while waiting:
            path, schema = waiting.popleft()
            if isinstance(schema, bool) or id(schema) in seen:
                continue
            if not isinstance(schema, dict):
                self._refuse(path, "must be a schema: an object, true or false")
            if len(path) > MAX_DEPTH:
                self._refuse(path[:8], f"has more than {MAX_DEPTH} levels below the root")
            seen.add(id(schema))
            self.budget.spend()
            self._drop(path, schema)
            _normalize(schema)
            self._check_sizes(path, schema)
            self._check_values(path, schema)
            self._draw_in(path, schema)
            if self.closed and _is_open_object(schema):
                schema["additionalProperties"] = False
            if "oneOf" in schema:
                unions.append((path, schema))
            waiting += self._targets(path, schema)
            waiting += [((*path, *steps), inner) for steps, inner in children(schema)]
        comparing = Unions(self.root, self.budget)
        for path, schema in unions:  # when all that they refer to is prepared
            self._union(path, schema, comparing)

    def _refuse(self, path: Path, what: str) -> NoReturn:
        where = f"{self.prefix}{written(path)}" if path else self.prefix.removesuffix(": ")
        raise InvalidRequestError(f"{where} {what}", param=self.param)

    def _drop(self, path: Path, schema: Schema) -> None:
        for name in [name for name in schema if name in _UNSUPPORTED]:
            if not _UNSUPPORTED[name](schema, schema[name]):
                self._refuse((*path, name), "is not supported")
        for name in _UNSUPPORTED:
            schema.pop(name, None)
        self._form(path, schema)
        if not path:
            schema.pop("x-guidance", None)  # would be llguidance's options

    def _form(self, path: Path, schema: Schema) -> None:
        form = schema.get("format")
        if not isinstance(form, str):
            return
        if form not in _FORMATS or "string" not in (types(schema) or ("string",)):
            del schema["format"]  # an annotation
        elif form in TIMES:
            del schema["format"]
            schema["allOf"] = [*listed(schema, "allOf"), {"pattern": TIMES[form]}]
        elif form not in _ENFORCED:
            self._refuse((*path, "format"), f"{form!r} is not supported")
        elif form == "hostname":  # of which llguidance limits each part alone
            schema["allOf"] = [*listed(schema, "allOf"), {"maxLength": 253}]

    def _check_sizes(self, path: Path, schema: Schema) -> None:
        required = {name for name in listed(schema, "required") if isinstance(name, str)}
        names = required | mapped(schema, "properties").keys()
        if len(names) > MAX_PROPERTIES:
            self._refuse((*path, "properties"), f"must be at most {MAX_PROPERTIES} names, got {len(names)}")
        patterns = len(mapped(schema, "patternProperties"))
        if patterns > MAX_PATTERNS:
            self._refuse((*path, "patternProperties"), f"must be at most {MAX_PATTERNS} patterns, got {patterns}")
        least = schema.get("minProperties", 0)
        if isinstance(least, int) and least > len(required) + 1:
            # The names of further properties may be anything, and so twice the same.
            self._refuse((*path, "minProperties"), "is not supported beyond one more than the required properties")

    def _check_values(self, path: Path, schema: Schema) -> None:
        for name in ("const", "enum"):
            for value in _leaves(schema.get(name)):
                if isinstance(value, int) and abs(value) > MAX_EXACT:
                    self._refuse((*path, name), f"has {value!r:.40}: integers beyond 2^53 are not supported")

    def _draw_in(self, path: Path, schema: Schema) -> None:
        for name, limit in (("minimum", -MAX_EXACT), ("maximum", MAX_EXACT)):
            for keyword in (name, f"exclusive{name.capitalize()}"):
                value = schema.get(keyword)
                if isinstance(value, bool) or not isinstance(value, int | float):
                    continue
                if abs(value) > MAX_EXACT and (value < 0) == (limit < 0):
                    schema[keyword] = limit
                elif abs(value) > MAX_EXACT:
                    self._refuse((*path, keyword), f"is {value!r:.40}: numbers beyond 2^53 are not supported")

    def _targets(self, path: Path, schema: Schema) -> list[tuple[Path, Any]]:
        reference = schema.get("$ref")
        if reference is None:
            return []
        found = self.references.target(schema)
        if found is None:
            self._refuse((*path, "$ref"), f"must lead to a part of the same schema, #/..., got {reference!r:.100}")
        return [found]

    def _union(self, path: Path, schema: Schema, comparing: Unions) -> None:
        options = listed(schema, "oneOf")
        if len(options) > MAX_UNION:
            self._refuse((*path, "oneOf"), f"must be at most {MAX_UNION} schemas, got {len(options)}")
        pair = comparing.overlapping(options)
        if pair is not None:
            self._refuse((*path, "oneOf"), f"is not supported where schemas {pair[0]} and {pair[1]} may both hold: use anyOf")
        if "anyOf" in schema:
            schema["allOf"] = [*listed(schema, "allOf"), {"anyOf": options}]
            del schema["oneOf"]
        else:  # in its place: the order of keywords is the order of properties
            items = [("anyOf" if name == "oneOf" else name, value) for name, value in schema.items()]
            schema.clear()
            schema.update(items)


def _normalize(schema: Schema) -> None:
    for name in _COUNTS & schema.keys():
        if isinstance(schema[name], float) and schema[name].is_integer():
            schema[name] = int(schema[name])
        if name.startswith("max") and isinstance(schema[name], int) and schema[name] > _COUNTLESS:
            del schema[name]
    if isinstance(schema.get("items"), list):  # of older drafts; read rightly only where one follows the other
        for name in ("items", "additionalItems"):
            if name in schema:
                schema[name] = schema.pop(name)


def _is_open_object(schema: Schema) -> bool:
    named = "properties" in schema or schema.get("type") == "object"
    return named and not schema.keys() & {"additionalProperties", "patternProperties"}


def _leaves(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            waiting += value
        else:
            yield value
