"""Structural tags, as vLLM and xgrammar write them, as a Lark grammar: text in which tags begin parts of a given form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.schema import prepared
from jaxserve.grammar.shortest import LONGEST, least_repeated

_TEXT = "(?s:.*)"
_TO_ESCAPE = re.compile(r"\\.|/|\n", re.DOTALL)


def literal(text: str) -> str:
    """A string of Lark."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def regex_literal(pattern: str) -> str:
    """A regex of Lark."""
    return f"/{_TO_ESCAPE.sub(_escaped, pattern)}/" if pattern else '""'


def with_options(schema: Any, options: Mapping[str, Any]) -> str:
    """The JSON of a prepared schema with llguidance's options: last, as it moves the last keyword to where it takes them out."""
    return json.dumps({**({} if schema is True else schema), "x-guidance": options}, ensure_ascii=False)


def _escaped(found: re.Match[str]) -> str:
    return {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}.get(found[0], found[0])


class StructuralTag:
    """Writes one grammar.

    Args:
        param: the field that the tag is in, for errors.
        options: of JSON, as llguidance names them.
        special_tokens: ids of tokens that no text has, by name; where a tag names one it is meant.
        closed: whether objects of schemas have no properties but those they name.
    """

    def __init__(self, param: str, options: Mapping[str, Any], special_tokens: Mapping[str, int], *, closed: bool) -> None:
        self._param = param
        self._options = options
        self._special = special_tokens
        names = sorted(map(re.escape, special_tokens), key=len, reverse=True)
        self._names = re.compile(f"({'|'.join(names)})") if names else None
        self._closed = closed
        self._rules: list[str] = []
        self._older = False
        self._writers: Mapping[str, Callable[[Any, str, str], str]] = MappingProxyType(
            {
                "const_string": self._constant,
                "json_schema": self._schema,
                "regex": self._regex,
                "any_text": self._any_text,
                "sequence": self._sequence,
                "or": self._or,
                "tag": self._tag,
                "triggered_tags": self._triggered,
                "tags_with_separator": self._separated,
            }
        )

    def grammar(self, tag: Any) -> str:
        """The grammar of a parsed tag, in either form. Raises InvalidRequestError naming the part that is wrong."""
        if not isinstance(tag, dict) or tag.get("type") != "structural_tag":
            self._refuse("", 'must be an object with type "structural_tag"')
        try:
            start = self._format(tag.get("format") or self._of_older_form(tag), "format", "")
        except RecursionError:
            self._refuse("format", "is nested too deeply")
        return "\n".join((f"start: {start}", f"TEXT: /{_TEXT}/", *self._rules))

    def _of_older_form(self, tag: dict[str, Any]) -> dict[str, Any]:
        structures = self._list(tag, "structures", "structures")
        self._older = True
        for place, one in enumerate(structures):
            if not isinstance(one, dict) or "schema" not in one:
                self._refuse(f"structures[{place}]", "must be an object with begin, schema and end")
        tags = [
            {
                "type": "tag",
                "begin": one.get("begin"),
                "content": {"type": "json_schema", "json_schema": one["schema"]},
                "end": one.get("end", ""),
            }
            for one in structures
        ]
        return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}

    def _refuse(self, place: str, what: str) -> NoReturn:
        where = f": {self._place(place)}" if place else ""
        raise InvalidRequestError(f"{self._param}{where} {what}", param=self._param)

    def _place(self, place: str) -> str:
        if self._older:  # as its author wrote it
            place = place.removeprefix("format.").replace("tags[", "structures[").replace(".content.json_schema", ".schema")
        return place

    def _list(self, value: Mapping[str, Any], name: str, place: str) -> list[Any]:
        found = value.get(name)
        if not isinstance(found, list) or not found:
            self._refuse(place, "must be a list that is not empty")
        return found

    def _text(self, value: Mapping[str, Any], name: str, place: str) -> str:
        text = value.get(name)
        if not isinstance(text, str):
            self._refuse(f"{place}.{name}", "must be a string")
        return text

    def _known(self, value: Mapping[str, Any], place: str, names: Iterable[str]) -> None:
        for name in value:
            if name not in names and name != "type" and value[name] not in (None, False, []):
                self._refuse(f"{place}.{name}", "is not supported")

    def _format(self, value: Any, place: str, then: str) -> str:
        """The expression of a format, and of the text that follows it."""
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in self._writers:
            self._refuse(f"{place}.type", f"must be one of {', '.join(self._writers)}, got {kind!r}"[:300])
        return self._writers[kind](value, place, then)

    def _written(self, text: str) -> str:
        """A text as an expression: special tokens are those tokens, the rest is text."""
        parts = self._names.split(text) if self._names else [text]
        return " ".join(f"<[{self._special[part]}]>" if part in self._special else literal(part) for part in parts if part)

    def _rule(self, body: str, *, lazy: bool = False) -> str:
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def _up_to(self, text: str) -> str:
        """Any text up to the first that reads so, with it. What ends it is what comes before its first special token, or that."""
        plain = self._names.split(text)[0] if self._names else text
        head = self._rule(f"/{_TEXT}/ {literal(plain)}", lazy=True) if plain else "TEXT"
        return f"{head} {self._written(text[len(plain) :])}"

    def _constant(self, value: Any, place: str, then: str) -> str:
        self._known(value, place, ("value",))
        return self._written(self._text(value, "value", place) + then) or '""'

    def _schema(self, value: Any, place: str, then: str) -> str:
        if value.get("style", "json") != "json":
            self._refuse(f"{place}.style", 'must be "json"')
        self._known(value, place, ("json_schema", "style"))
        schema = value.get("json_schema")
        schema = prepared(schema, self._param, place=self._place(f"{place}.json_schema"), closed=self._closed)
        return f"%json {with_options(schema, self._options)} {self._written(then)}"

    def _regex(self, value: Any, place: str, then: str) -> str:
        self._known(value, place, ("pattern",))
        pattern = self._text(value, "pattern", place)
        if least_repeated(pattern) > LONGEST:
            self._refuse(f"{place}.pattern", f"cannot be satisfied: no text has less than {LONGEST} characters")
        return f"{self._rule(regex_literal(pattern))} {self._written(then)}"

    def _any_text(self, value: Any, place: str, then: str) -> str:
        self._known(value, place, ())
        return self._up_to(then) if then else "TEXT"

    def _sequence(self, value: Any, place: str, then: str) -> str:
        self._known(value, place, ("elements",))
        elements = self._list(value, "elements", f"{place}.elements")
        parts: list[str] = []
        for index in reversed(range(len(elements))):
            element, at = elements[index], f"{place}.elements[{index}]"
            kind = element.get("type") if isinstance(element, dict) else None
            if kind == "const_string":  # text before it ends with it
                then = self._text(element, "value", at) + then
                continue
            if kind in ("any_text", "triggered_tags") and parts and not then:
                self._refuse(at, f"is {kind}, which is only supported last; any_text before a const_string, too")
            parts.insert(0, self._format(element, at, then))
            then = ""
        return f"({self._written(then)} {' '.join(parts)})" if then or parts else '""'

    def _or(self, value: Any, place: str, then: str) -> str:
        self._known(value, place, ("elements",))
        elements = self._list(value, "elements", f"{place}.elements")
        return f"({' | '.join(self._format(one, f'{place}.elements[{index}]', then) for index, one in enumerate(elements))})"

    def _tag(self, value: Any, place: str, then: str, after: str = "") -> str:
        """`after` is what of its beginning has come already."""
        if not isinstance(value, dict):
            self._refuse(place, "must be a tag")
        self._known(value, place, ("begin", "content", "end"))
        begin, end = self._text(value, "begin", place), value.get("end")
        ends: list[Any] = end if isinstance(end, list) and end else [end]
        if not all(isinstance(one, str) for one in ends):
            self._refuse(f"{place}.end", "must be a string, or a list of strings")
        contents = [self._format(value.get("content"), f"{place}.content", one + then) for one in ends]
        return f"{self._written(begin.removeprefix(after))} ({' | '.join(contents)})"

    def _triggered(self, value: Any, place: str, then: str) -> str:
        self._known(value, place, ("triggers", "tags", "at_least_one", "stop_after_first"))
        if then:
            self._refuse(place, "is triggered_tags, which is only supported where nothing follows")
        triggers = self._list(value, "triggers", f"{place}.triggers")
        if not all(isinstance(one, str) and one for one in triggers):
            self._refuse(f"{place}.triggers", "must be strings that are not empty")
        bodies: dict[str, list[str]] = {}
        for index, tag in enumerate(self._list(value, "tags", f"{place}.tags")):
            at = f"{place}.tags[{index}]"
            begin = self._text(tag, "begin", at) if isinstance(tag, dict) else self._refuse(at, "must be a tag")
            trigger = next((one for one in triggers if begin.startswith(one)), None)
            if trigger is None:
                self._refuse(f"{at}.begin", "must begin with one of the triggers")
            bodies.setdefault(trigger, []).append(self._tag(tag, at, "", trigger))
        one = self._rule(" | ".join(f"{self._up_to(trigger)} ({' | '.join(options)})" for trigger, options in bodies.items()))
        if value.get("stop_after_first"):
            return one if value.get("at_least_one") else f"({one} | TEXT)"
        return f"{one}{'+' if value.get('at_least_one') else '*'} TEXT"

    def _separated(self, value: Any, place: str, then: str) -> str:
        self._known(value, place, ("tags", "separator", "at_least_one", "stop_after_first"))
        separator = self._written(self._text(value, "separator", place))
        tags = [
            self._tag(tag, f"{place}.tags[{index}]", "") for index, tag in enumerate(self._list(value, "tags", f"{place}.tags"))
        ]
        one = self._rule(" | ".join(tags))
        some = one if value.get("stop_after_first") else f"{one} ({separator} {one})*"
        return f"({some}){'' if value.get('at_least_one') else '?'} {self._written(then)}"
