"""Structural tags, as vLLM and xgrammar write them, as a Lark grammar: text in which tags begin parts of a given form."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

from jaxserve.chat_parsing.lark import json_with_options, literal
from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.budget import Budget
from jaxserve.grammar.schema import prepared
from jaxserve.grammar.shortest import LONGEST, least_repeated

_TEXT = "(?s:.*)"
_SHORT = 200  # characters of an expression that is written wherever it is needed; longer ones are rules
_TO_ESCAPE = re.compile(r"\\.|/|\n", re.DOTALL)


def regex_literal(pattern: str) -> str:
    """A regex of Lark."""
    return f"/{_TO_ESCAPE.sub(_escaped, pattern)}/" if pattern else '""'


def with_options(schema: Any, options: Mapping[str, Any]) -> str:
    """The JSON of a prepared schema with llguidance's options."""
    return json_with_options({} if schema is True else schema, options)


def _escaped(found: re.Match[str]) -> str:
    return {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}.get(found[0], found[0])


@dataclass(eq=False, slots=True)
class _Following:
    """The text that follows a format.

    Attributes:
        expression: of this text; empty if nothing follows.
        ends: the texts of which the first ends free text before it; none if nothing follows.
        behind: the expression of what follows after one of `ends`.
        free: the expression of free text up to `ends` with all that follows, once it is written.
    """

    expression: str = ""
    ends: Sequence[str] = ()
    behind: str = ""
    free: str = ""

    def after(self, expression: str) -> str:
        return f"{expression} {self.expression}".strip()


class StructuralTag:
    """Writes one grammar, whose size is linear in the tag's: each format is written once, whatever may follow it.

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
        self._budget = Budget()
        self._known_rules: dict[str, str] = {}
        self._writers: Mapping[str, Callable[[Any, str, _Following], str]] = MappingProxyType(
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
            start = self._format(tag.get("format") or self._of_older_form(tag), "format", _Following())
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
                self._refuse(f"{place}.{name:.80}", "is not supported")

    def _format(self, value: Any, place: str, then: _Following) -> str:
        """The expression of a format and of its successor."""
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in self._writers:
            self._refuse(f"{place}.type", f"must be one of {', '.join(self._writers)}, got {kind!r:.80}")
        expression = self._writers[kind](value, place, then)
        return self._rule(expression) if "(" in expression else expression  # a parser of Lark takes no deep nests of brackets

    def _written(self, text: str) -> str:
        """A text as an expression: special tokens are those tokens, the rest is text."""
        parts = self._names.split(text) if self._names else [text]
        return " ".join(f"<[{self._special[part]}]>" if part in self._special else literal(part) for part in parts if part)

    def _rule(self, body: str, *, lazy: bool = False) -> str:
        """The name of a rule: that of an equal one if there is one."""
        key = f"{'[lazy]' if lazy else ''}: {body}"
        if key not in self._known_rules:
            name = self._known_rules[key] = f"part_{len(self._rules)}"
            self._rules.append(name + key)
        return self._known_rules[key]

    def _short(self, expression: str) -> str:
        """The expression, or the name of a rule for it where it is long: it may be written many times."""
        return expression if len(expression) <= _SHORT else self._rule(expression)

    def _following(self, ends: Sequence[str], then: _Following) -> _Following:
        """One of these texts, none of them empty, and then what follows."""
        expression = self._short(_one_of([self._written(end) for end in ends]))
        return _Following(self._short(then.after(expression)), ends, then.expression)

    def _up_to(self, text: str) -> str:
        """Any text up to the first that reads so, with it. What ends it is what comes before its first special token, or that."""
        plain = self._names.split(text)[0] if self._names else text
        head = self._rule(f"/{_TEXT}/ {literal(plain)}", lazy=True) if plain else "TEXT"
        return f"{head} {self._written(text[len(plain) :])}"

    def _constant(self, value: Any, place: str, then: _Following) -> str:
        self._known(value, place, ("value",))
        return then.after(self._written(self._text(value, "value", place))) or '""'

    def _schema(self, value: Any, place: str, then: _Following) -> str:
        if value.get("style", "json") != "json":
            self._refuse(f"{place}.style", 'must be "json"')
        self._known(value, place, ("json_schema", "style"))
        schema = value.get("json_schema")
        schema = prepared(
            schema, self._param, place=self._place(f"{place}.json_schema"), closed=self._closed, budget=self._budget
        )
        return then.after(f"%json {with_options(schema, self._options)}")

    def _regex(self, value: Any, place: str, then: _Following) -> str:
        self._known(value, place, ("pattern",))
        pattern = self._text(value, "pattern", place)
        if least_repeated(pattern) > LONGEST:
            self._refuse(f"{place}.pattern", f"cannot be satisfied: no text has less than {LONGEST} characters")
        return then.after(self._rule(regex_literal(pattern)))

    def _any_text(self, value: Any, place: str, then: _Following) -> str:
        self._known(value, place, ())
        if not then.ends:
            return then.after("TEXT")
        if not then.free:
            free = _one_of([self._up_to(end) for end in then.ends])
            then.free = self._short(f"{free} {then.behind}".strip())
        return then.free

    def _sequence(self, value: Any, place: str, then: _Following) -> str:
        self._known(value, place, ("elements",))
        elements = self._list(value, "elements", f"{place}.elements")
        parts: list[str] = []
        constants: list[str] = []  # texts that come next, the last first: free text before them ends with them
        for index in reversed(range(len(elements))):
            element, at = elements[index], f"{place}.elements[{index}]"
            kind = element.get("type") if isinstance(element, dict) else None
            if kind == "const_string":
                self._known(element, at, ("value",))
                constants.append(self._text(element, "value", at))
                continue
            text = "".join(reversed(constants))
            follows = self._following([text], then) if text else then
            if kind in ("any_text", "triggered_tags") and parts and not follows.ends:
                self._refuse(at, f"is {kind}, which is only supported last; any_text before a const_string, too")
            parts.append(self._format(element, at, follows))
            constants, then = [], _Following()
        first = then.after(self._written("".join(reversed(constants))))
        written = " ".join(filter(None, [first, *reversed(parts)]))
        return f"({written})" if written else '""'

    def _or(self, value: Any, place: str, then: _Following) -> str:
        self._known(value, place, ("elements",))
        elements = self._list(value, "elements", f"{place}.elements")
        return f"({' | '.join(self._format(one, f'{place}.elements[{index}]', then) for index, one in enumerate(elements))})"

    def _tag(self, value: Any, place: str, then: _Following, after: str = "") -> str:
        """`after` is what of its beginning has come already."""
        if not isinstance(value, dict):
            self._refuse(place, "must be a tag")
        self._known(value, place, ("begin", "content", "end"))
        begin, end = self._text(value, "begin", place), value.get("end")
        ends: list[Any] = end if isinstance(end, list) and end else [end]
        if not all(isinstance(one, str) for one in ends):
            self._refuse(f"{place}.end", "must be a string, or a list of strings")
        content = self._format(value.get("content"), f"{place}.content", self._ended(list(dict.fromkeys(ends)), then))
        return f"{self._written(begin.removeprefix(after))} ({content})"

    def _ended(self, ends: list[str], then: _Following) -> _Following:
        """What follows the content of a tag with these ends."""
        if "" not in ends:
            return self._following(ends, then)
        if len(ends) == 1:
            return then
        # Free text may have the other ends in it: only what follows the tag ends it.
        some = self._short(_one_of([self._written(end) for end in ends if end]))
        return _Following(then.after(f"{some}?" if some.startswith("part_") else f"({some})?"), then.ends, then.behind)

    def _triggered(self, value: Any, place: str, then: _Following) -> str:
        self._known(value, place, ("triggers", "tags", "at_least_one", "stop_after_first"))
        if then.expression:
            self._refuse(place, "is triggered_tags, which is only supported where nothing follows")
        triggers = self._list(value, "triggers", f"{place}.triggers")
        if not all(isinstance(one, str) and one for one in triggers):
            self._refuse(f"{place}.triggers", "must be strings that are not empty")
        begun = _Prefixes(triggers)
        bodies: dict[str, list[str]] = {}
        for index, tag in enumerate(self._list(value, "tags", f"{place}.tags")):
            at = f"{place}.tags[{index}]"
            begin = self._text(tag, "begin", at) if isinstance(tag, dict) else self._refuse(at, "must be a tag")
            trigger = begun.first(begin)
            if trigger is None:
                self._refuse(f"{at}.begin", "must begin with one of the triggers")
            bodies.setdefault(trigger, []).append(self._tag(tag, at, _Following(), trigger))
        one = self._rule(" | ".join(f"{self._up_to(trigger)} ({' | '.join(options)})" for trigger, options in bodies.items()))
        if value.get("stop_after_first"):
            return one if value.get("at_least_one") else f"({one} | TEXT)"
        return f"{one}{'+' if value.get('at_least_one') else '*'} TEXT"

    def _separated(self, value: Any, place: str, then: _Following) -> str:
        self._known(value, place, ("tags", "separator", "at_least_one", "stop_after_first"))
        separator = self._written(self._text(value, "separator", place))
        tags = [
            self._tag(tag, f"{place}.tags[{index}]", _Following())
            for index, tag in enumerate(self._list(value, "tags", f"{place}.tags"))
        ]
        one = self._rule(" | ".join(tags))
        some = one if value.get("stop_after_first") else f"{one} ({separator} {one})*"
        return then.after(f"({some}){'' if value.get('at_least_one') else '?'}")


class _Prefixes:
    """Finds which of some texts another one begins with, without a comparison with each."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._places = {text: place for place, text in reversed(list(enumerate(texts)))}
        self._lengths = sorted({len(text) for text in texts})

    def first(self, text: str) -> str | None:
        """The first in the list's order."""
        heads = (text[:length] for length in self._lengths if length <= len(text))
        return min((head for head in heads if head in self._places), key=self._places.__getitem__, default=None)


def _one_of(expressions: Sequence[str]) -> str:
    return expressions[0] if len(expressions) == 1 else f"({' | '.join(expressions)})"
