"""Pieces of llguidance's Lark grammars: literals with special tokens in them, text up to a marker, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from jaxserve.errors import InvalidRequestError

ANY_TEXT = "(?s:.*)"
ANY = f"/{ANY_TEXT}/"
MOST_CHARACTERS = 16 * 2**20  # of a grammar: what several tools refer to is written for each
_BY_CODE = re.compile(r"\x7f|\\(?:u00|x)(?:[01]|7[fF])")  # characters that JSON strings hold only as escapes by code
_ESCAPES = "json_allowed_escapes"


def literal(text: str) -> str:
    """A string of Lark."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def json_with_options(schema: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """The JSON of a schema with llguidance's options: last, as it moves the last keyword to where it takes them out.

    Strings that the schema has escape characters by their code only where it names such characters: else a property could come
    twice, under two spellings of its name.
    """
    kept = {name: value for name, value in schema.items() if name != "x-guidance"}
    text = json.dumps({**kept, "x-guidance": options}, ensure_ascii=False)
    if _ESCAPES not in options or not _BY_CODE.search(text):
        return text
    return json.dumps({**kept, "x-guidance": {**options, _ESCAPES: options[_ESCAPES] + "u"}}, ensure_ascii=False)


class Lark:
    """The rules of a grammar, as they are made.

    llguidance matches a special token only where a grammar asks for that token, never by its text; so a literal is cut
    at the special tokens in it.

    Args:
        special_tokens: their ids, by text.
        json_options: llguidance's options for JSON.
    """

    def __init__(self, special_tokens: Mapping[str, int], json_options: Mapping[str, Any]) -> None:
        self._special = special_tokens
        self._json_options = json_options
        longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._cuts = re.compile(f"({'|'.join(map(re.escape, longest_first))})" if longest_first else r"(?!)()")
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._count = 0
        self._left = MOST_CHARACTERS

    @property
    def text(self) -> str:
        return "\n".join(f"{head}: {body}" for head, body in self._rules.items())

    def rule(self, name: str, body: str, options: str = "") -> str:
        """Add a rule, unless there is the same one already, and say its name: the given one and a number."""
        key = f"{name}{options}: {body}"
        self.spend(len(key))
        if key not in self._names:
            self._names[key] = self.new_name(name)
            self.define(self._names[key] + options, body)
        return self._names[key]

    def new_name(self, name: str) -> str:
        self._count += 1
        return f"{name}_{self._count}"

    def define(self, head: str, body: str) -> None:
        self.spend(len(body))
        self._rules[head] = body

    def spend(self, characters: int) -> None:
        """Count characters that are written. Raises InvalidRequestError if there are more than a grammar may take."""
        self._left -= characters
        if self._left < 0:
            what = f"tools take a grammar of more than {MOST_CHARACTERS} characters: give fewer tools, or smaller schemas"
            raise InvalidRequestError(what, param="tools")

    def literal(self, text: str) -> str:
        pieces = [self._piece(piece) for piece in self._cuts.split(text) if piece]
        return " ".join(pieces)

    def _piece(self, text: str) -> str:
        return f"<[{self._special[text]}]>" if text in self._special else literal(text)

    def text_without(self, markers: Iterable[str], also: Sequence[str] = (), end: str = "") -> str:
        """Text that has none of the markers in it, and is of each of the patterns `also` but for its end, which is given."""
        patterns = [f"/{pattern}{escaped(end)}/" for pattern in (ANY_TEXT, *also)]
        if excluded := [escaped(marker) for marker in dict.fromkeys(markers) if marker]:
            patterns.append(f"~/(?s:.*)({'|'.join(excluded)})(?s:.*)/")
        return self.rule("TEXT", " & ".join(patterns))

    def until(self, marker: str, ending: str = "", also: Sequence[str] = (), without: Iterable[str] = ()) -> str:
        """Text up to the marker's first place, and the ending there: the marker, maybe with white space around it.

        The text is of the patterns `also`, and has none of the texts `without` in it.
        """
        ending = ending or marker
        if self._cuts.search(marker):
            # A lexeme takes all the text that it can: what the ending has before its special token is the end of the lexeme.
            plain, *rest = self._cuts.split(ending.lstrip())
            text = self.text_without([marker, *without], also, end=plain)
            return f"{text} {self.literal(''.join(rest))}"
        text = self.text_without([marker, *without], also)
        return self.rule("until", f"{text} {literal(ending)}", "[lazy]")

    def anything(self, without: Collection[str]) -> str:
        """All text and all special tokens, but those of these names."""
        ids = [str(token) for name, token in self._special.items() if name not in without]
        text = self.text_without([])
        return f"({text} | <[{','.join(ids)}]>)*" if ids else text

    def json(self, schema: Mapping[str, Any]) -> str:
        return self.rule("json", f"%json {json_with_options(schema, self._json_options)}")

    def separated(self, required: Sequence[str], optional: Sequence[str], separator: str) -> str:
        """The items, each at most once and in this order, those that are required always."""
        following = [f"({separator} {item})?" for item in optional]
        if required:
            return " ".join([f" {separator} ".join(required), *following])
        chains = [" ".join([item, *following[place + 1 :]]) for place, item in enumerate(optional)]
        return f"({' | '.join(chains)})?" if chains else ""


def escaped(text: str) -> str:
    """A text as a pattern of llguidance."""
    return re.sub(r"([\\.+*?()|\[\]{}^$/])", r"\\\1", text).replace("\n", r"\n")


def one_of(choices: Iterable[str]) -> str:
    choices = list(choices)
    return choices[0] if len(choices) == 1 else f"({' | '.join(choices)})"
