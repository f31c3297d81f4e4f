"""Calls of tools, in the model's own format, as rules of a Lark grammar."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from jaxserve.chat_parsing.arguments_grammar import arguments_rule
from jaxserve.chat_parsing.lark import ANY, Lark, one_of
from jaxserve.chat_parsing.patterns import leading_texts
from jaxserve.chat_parsing.template import Field
from jaxserve.chat_parsing.tools import Tool
from jaxserve.chat_parsing.writing import CallText

_SLOT = re.compile(r"\{(arguments|index|id|space)\}")
_SLOTS: Mapping[str, str] = {"index": "/[0-9]{1,3}/", "id": "/[A-Za-z0-9]{9}/", "space": "/ ?/"}
_JSON_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*"|\s+|[{}\[\]:,])')


class CallsGrammar:
    """Writes the calls of some tools.

    Args:
        end_tokens: texts of tokens that end a response, and so need not be written behind a call.
        apart: their JSON is written token by token, as beside other JSON that may come instead. What reads the text takes the
            longest piece that one of both can have, and would be lost where the rest is the other's.
    """

    def __init__(
        self,
        lark: Lark,
        field: Field,
        text: CallText,
        tools: Sequence[Tool],
        *,
        parallel: bool,
        end_tokens: Collection[str],
        apart: bool = False,
    ) -> None:
        self._lark, self._field, self._text, self._tools = lark, field, text, tools
        self._call_text = text.call
        for token in end_tokens:
            self._call_text = self._call_text.removesuffix(token)
        self._between = text.between if parallel and self._call_text == text.call else None
        self._arguments = {tool.name: arguments_rule(lark, field, text, tool) for tool in tools}
        self._apart = apart and bool(text.unmarked) and field.kind == "json"

    def calls(self, without: str = "") -> str:
        """The calls; `without` the text that they begin with."""
        lark, text = self._lark, self._text
        # One literal up to the first argument: where an answer may be anything else, a call is told from it by that.
        first = (text.begin + self._call_text).removeprefix(without)
        parts = [f"({lark.literal(text.prelude)})?"] if text.prelude else []
        parts.append(one_of(self._call(tool, first) for tool in self._tools))
        if self._between is not None:
            following = one_of(self._call(tool, self._between + self._call_text) for tool in self._tools)
            parts.append(f"{following}*" if following.startswith("(") else f"({following})*")
        return " ".join([*parts, lark.literal(text.end)])

    def among_text(self) -> str:
        """Text, and calls where it says what they begin with."""
        lark, text = self._lark, self._text
        if not text.trigger:
            answer = lark.rule("ANSWER", f"{ANY} & ~/({text.unmarked})(?s:.*)/")
            return f"({answer} | {self.calls()})"
        markers = call_markers(self._field, text)
        plain = lark.text_without(markers)
        head = lark.until(text.trigger, without=markers)
        calls = f"{head} {self.calls(without=text.trigger)}"
        return f"({plain} | {calls})" if self._between is None else f"({calls})* {plain}"

    def _call(self, tool: Tool, text: str) -> str:
        slots = {**_SLOTS, "arguments": self._arguments[tool.name]}
        pieces = _SLOT.split(text.replace("{name}", tool.name))
        written = [slots[piece] if place % 2 else self._literal(piece) for place, piece in enumerate(pieces)]
        return self._lark.rule("call", " ".join(filter(None, written)))

    def _literal(self, text: str) -> str:
        if not self._apart:
            return self._lark.literal(text)
        tokens = filter(None, _JSON_TOKEN.split(text))
        return " ".join(_SLOTS["space"] if token.isspace() else self._lark.literal(token) for token in tokens)


def call_markers(field: Field, text: CallText) -> list[str]:
    """What the parser takes for the beginning of calls."""
    opening, trigger = field.open, text.trigger
    others = () if opening is None else opening.literals or leading_texts(opening.source)
    return [trigger, *(text for text in others if not trigger.startswith(text))]
