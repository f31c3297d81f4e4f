"""Literals that are not quite JSON, turned into JSON as they arrive."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import regex

from jaxserve.chat_parsing.automaton import Pattern
from jaxserve.chat_parsing.calls import MalformedCallError
from jaxserve.chat_parsing.search import Search, TokenMatcher
from jaxserve.chat_parsing.stream import TextStream

_WORD = r"[^\s{}\[\]():,=\"'<]+"
_SIGNS = "{}[]():,="
_INK = re.compile(r"\S")
_NOT_PLAIN = re.compile(r"[\\'\"]")
_ESCAPE = Pattern(r"(?P<escape>\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[^xuU]))")
ESCAPED: Mapping[str, str] = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": "",
    "\\": "\\", "'": "'", '"': '"',
}  # fmt: skip
_PYTHON_WORDS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}


class Dialect:
    """How literals are written that are not quite JSON.

    Keys may be bare, quoted strings have the escapes of JSON and Python. With `string_marks`, a string may also stand
    between two marks, in which nothing is escaped. With `python`, keywords are keys, words are Python's, strings may have
    single quotes, tuples are lists.
    """

    def __init__(self, string_marks: Sequence[Sequence[str]] = (), *, python: bool = False) -> None:
        self.python = python
        self.quotes = "'\"" if python else '"'
        self.closings = {mark[0]: Pattern(regex.escape(mark[1])) for mark in string_marks}
        marks = "|".join(map(regex.escape, self.closings))
        word = rf"(?P<word>{_WORD})(?=\s*(?P<after>\S))"
        self.token = Pattern(f"(?P<mark>{marks})|{word}" if marks else word)
        self._mark_starts = {mark[0] for mark in self.closings}
        self.words = _PYTHON_WORDS if python else {}
        self.key_sign = "=" if python else ":"
        self.brackets: Mapping[str, str] = {"(": "[", ")": "]", "=": ":"} if python else {}

    def begins_token(self, sign: str) -> bool:
        """Whether more than a character may begin with this one: a word or a mark."""
        return sign in self._mark_starts or not (sign in self.quotes or sign in _SIGNS)


PYTHON = Dialect(python=True)


def read_dialect(options: Mapping[str, Any]) -> Dialect | None:
    """The dialect that `content_args` describe; None for JSON. Raises ValueError for marks that are not pairs of texts."""
    marks = options.get("string_delims") or ()
    if not marks and not options.get("unquoted_keys"):
        return None
    if not all(len(mark) == 2 and all(isinstance(text, str) and text for text in mark) for mark in marks):
        raise ValueError("string_delims must be a list of pairs of texts")
    return Dialect(marks)


class Literals:
    """A translator of literals to JSON. They end with the bracket that closes the first one, in Python with that of the call.

    Attributes:
        is_done: whether they have ended; the rest of the stream is not read.
    """

    def __init__(self, stream: TextStream, dialect: Dialect) -> None:
        self._stream, self._dialect = stream, dialect
        self._tokens = TokenMatcher(stream)
        self._depth = int(dialect.python)  # that of the call
        self._quote = ""  # what ends the string that is being read,
        self._closing: Search | None = None  # or the search for it
        self.is_done = False

    @property
    def inside_string(self) -> bool:
        return bool(self._quote) or self._closing is not None

    def translate(self) -> str:
        """The JSON that is certain with the text so far. Raises MalformedCallError for an unknown escape."""
        written: list[str] = []
        while not self.is_done and self._stream.at < self._stream.end:
            step = self._in_quotes if self._quote else self._outside if self._closing is None else self._in_marks
            if not step(written):
                break
        return "".join(written)

    def _outside(self, written: list[str]) -> bool:
        """Read on; whether there may be more to read."""
        sign = self._read_to(_INK, written)
        if not sign:
            return False
        if self._dialect.begins_token(sign):
            search = self._tokens.match(self._dialect.token)
            if not search.is_over:
                return False
            if search.match is not None:
                self._read_token(search.match.groups, written)
                return True
        self._stream.at += 1
        if sign in self._dialect.quotes:
            self._quote = sign
            written.append('"')
        else:
            self._read_sign(sign, written)
        return True

    def _read_token(self, token: Mapping[str, str], written: list[str]) -> None:
        if mark := token.get("mark"):
            self._closing = Search(self._dialect.closings[mark], self._stream, self._stream.at)
            written.append('"')
            return
        word = token["word"]
        is_key = token["after"] == self._dialect.key_sign
        written.append(json.dumps(word, ensure_ascii=False) if is_key else self._dialect.words.get(word, word))

    def _read_sign(self, sign: str, written: list[str]) -> None:
        if sign in "([{":
            self._depth += 1
        elif sign in ")]}":
            self._depth -= 1
            self.is_done = self._depth <= 0
        if not (self.is_done and self._dialect.python):
            written.append(self._dialect.brackets.get(sign, sign))

    def _in_marks(self, written: list[str]) -> bool:
        assert self._closing is not None
        self._closing.advance()
        found = self._closing.match
        written.append(_escaped(self._stream.take(self._closing.certain_to)))
        if found is None:
            return False
        written.append('"')
        self._stream.at, self._closing = found.end, None
        return True

    def _in_quotes(self, written: list[str]) -> bool:
        sign = self._read_to(_NOT_PLAIN, written, escapes=True)
        if not sign:
            return False
        if sign != "\\":
            self._stream.at += 1
            is_end = sign == self._quote
            if is_end:
                self._quote = ""
            written.append('"' if is_end else _escaped(sign))
            return True
        search = self._tokens.match(_ESCAPE)
        if search.match is None:
            if search.is_over:
                raise MalformedCallError("a string has an unknown escape")
            return False
        escape = search.match.groups["escape"]
        code = escape[1:]
        if code[0] == "u":
            written.append(escape)  # JSON's own, halves of a surrogate pair included
        else:
            unknown = escape if self._dialect.python else code  # Python keeps the backslash, as in "\d"
            written.append(_escaped(chr(int(code[1:], 16)) if code[0] in "xU" else ESCAPED.get(code, unknown)))
        return True

    def _read_to(self, sign: re.Pattern[str], written: list[str], *, escapes: bool = False) -> str:
        """Write the text before a character of a class, and return the character; "" at the end."""
        start = self._stream.at
        found = self._stream.find(sign)
        if text := self._stream.text(start, self._stream.at):
            written.append(_escaped(text) if escapes else text)
        return found


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
