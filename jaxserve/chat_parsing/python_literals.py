"""Literals of Python and JSON as models write them, in a text that is whole."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from jaxserve.chat_parsing.calls import MalformedCallError
from jaxserve.chat_parsing.literals import ESCAPED
from jaxserve.chat_parsing.tools import Tool, types_of

_SPACE = re.compile(r"\s*")
_KEY = re.compile(r"\s*([^\W\d][\w\-]*)\s*=")
_WORD = re.compile(r"[^\W\d]\w*")
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<coded>0[xXoObB][0-9a-fA-F_]+)|(?P<int>\d[\d_]*)(?![\d_.eE])"
    r"|(?P<float>(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d+)?))(?![\w.])"
)
_OPENING_OR_QUOTE = re.compile(r"['\"(\[{)\]}]")
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_QUOTE = {quote: re.compile(rf"\\.|{quote}", re.DOTALL) for quote in "'\""}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
# What follows the quote that ends a string: quotes before anything else are part of it.
_ARGUMENT_END = re.compile(r"\s*,\s*[^\W\d][\w\-]*\s*=|\s*(?:,\s*)?\)\s*(?:\Z|[\],;]|[^\W\d][\w.\-]*\()")
_ITEM_END = re.compile(r"\s*[,:\])}]")


def read_object(text: str) -> dict[str, Any] | None:
    """The object that a text is, as JSON or else as `LiteralReader` reads it; None if it is none."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        return None
    except ValueError:
        value = _read_literal(text)
    return value if isinstance(value, dict) else None


class LiteralReader:
    """Reads literals from a position on.

    Beside what Python allows, strings may have unescaped quotes in them, and integers leading zeros. Sets and tuples are
    lists. Methods raise MalformedCallError for text that is no literal, ValueError for numbers and RecursionError for depth
    beyond the limits of Python.
    """

    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self.at = at

    def arguments(self, tool: Tool | None) -> dict[str, Any]:
        """The arguments of a call, up to the bracket that closes it. Numbers stay text for parameters that are strings."""
        values: dict[str, Any] = {}
        while self._sign() != ")":
            key = _KEY.match(self._text, self.at)
            if key is None:
                raise MalformedCallError("an argument has no keyword")
            self.at = key.end()
            self._sign()
            start, value = self.at, self.value(_ARGUMENT_END)
            if isinstance(value, int | float) and not isinstance(value, bool) and tool is not None:
                is_text = types_of(tool.property_schema(key[1]), tool.parameters) == ("string",)
                value = self._text[start : self.at] if is_text else value
            values[key[1]] = value
            self._separator(")")
        self.at += 1
        return values

    def skip(self) -> int:
        """The position after the bracket that closes the one before the first position."""
        depth = 1
        while depth:
            found = _OPENING_OR_QUOTE.search(self._text, self.at)
            if found is None:
                raise MalformedCallError("the call has no end")
            self.at = found.start()
            if found[0] in _QUOTE:
                self._string(_ITEM_END)
                continue
            self.at += 1
            depth += 1 if found[0] in _CLOSING else -1
        return self.at

    def _sign(self) -> str:
        """The next character that is no white space, which is read; "" at the end."""
        self.at = _end(_SPACE, self._text, self.at)
        return self._text[self.at : self.at + 1]

    def _separator(self, closing: str) -> None:
        """A comma, or the bracket, which is not read."""
        sign = self._sign()
        if sign == ",":
            self.at += 1
        elif sign != closing:
            raise MalformedCallError("there is no separator after a value")

    def value(self, string_end: re.Pattern[str] = _ITEM_END) -> Any:
        """Any literal. `string_end`: what follows the quote that ends a string."""
        sign = self._sign()
        if sign in _QUOTE:
            return _unescaped(self._string(string_end))
        if sign in _CLOSING:
            self.at += 1
            return self._container(_CLOSING[sign])
        if number := _NUMBER.match(self._text, self.at):
            self.at = number.end()
            return _number(number)
        word = _WORD.match(self._text, self.at)
        if word is None or word[0] not in _WORDS:
            raise MalformedCallError("this is no literal")
        self.at = word.end()
        return _WORDS[word[0]]

    def _container(self, closing: str) -> Any:
        items: list[Any] = []
        entries: dict[str, Any] = {}
        while self._sign() != closing:
            value = self.value()
            if closing == "}" and self._sign() == ":" and isinstance(value, str):
                self.at += 1
                entries[value] = self.value()
            else:
                items.append(value)
            self._separator(closing)
        self.at += 1
        if items and entries:
            raise MalformedCallError("a set has keys")
        return items if items or closing != "}" else entries

    def _string(self, end: re.Pattern[str]) -> str:
        """The text of a string, its escapes as they are written."""
        text, quote = self._text, self._text[self.at]
        if text.startswith(3 * quote, self.at):
            start, last = self.at + 3, text.find(3 * quote, self.at + 3)
            if last < 0:
                raise MalformedCallError("a string has no end")
            self.at = last + 3
            return text[start:last]
        start = at = self.at + 1
        while found := _QUOTE[quote].search(text, at):
            at = found.end()
            if found[0] == quote and end.match(text, at):
                self.at = at
                return text[start : found.start()]
        self.at = len(text)
        raise MalformedCallError("a string has no end")


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _number(found: re.Match[str]) -> int | float:
    sign = -1 if found["sign"] == "-" else 1
    if found["coded"]:
        return sign * int(found["coded"], 0)
    if found["int"]:
        return sign * int(found["int"])
    value = sign * float(found["float"])
    if not math.isfinite(value):
        raise MalformedCallError("a number is too large")
    return value


def _unescaped(text: str) -> str:
    text = _ESCAPE.sub(_character, text)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")  # two escapes may be one character


def _character(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) == 1:
        if code in "xuU":
            raise MalformedCallError("a string has an unknown escape")
        return ESCAPED.get(code, found[0])
    return chr(int(code[1:], 16))


def _read_literal(text: str) -> Any:
    reader = LiteralReader(text, 0)
    try:
        value = reader.value()
    except (MalformedCallError, ValueError, RecursionError):
        return None
    return None if text[reader.at :].strip() else value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
