"""Literals that are not quite JSON, turned into JSON as they arrive; and calls written as Python."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import regex

from jaxserve.chat_parsing.calls import CallReader, CallSink, MalformedCallError

_WORD = regex.compile(r"[^\s{}\[\]():,=\"'<]+")
_NO_SPACE = regex.compile(r"\S")
_PLAIN = regex.compile(r"[^\\'\"]+")
_ESCAPE = regex.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[^xuU])", regex.DOTALL)
_ESCAPED: Mapping[str, str] = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_PYTHON_WORDS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}
_NAME = regex.compile(r"([A-Za-z_][\w.\-]*)\s*\(")


class Literals:
    """A translator of literals to JSON.

    Keys may be bare, quoted strings have the escapes of JSON and Python. With `string_marks`, a string may also stand
    between two marks, in which nothing is escaped. It ends with the bracket that closes the first one. With `python`, it
    reads a call's arguments up to the bracket that ends the call: keywords are keys, words are Python's, strings may have
    single quotes, tuples are lists.

    Attributes:
        rest: what follows the end, once it `is_done`.
    """

    def __init__(self, string_marks: Sequence[Sequence[str]] = (), *, python: bool = False) -> None:
        self._marks: dict[str, str] = {mark[0]: mark[1] for mark in string_marks}
        self._quotes = "'\"" if python else '"'
        self._words = _PYTHON_WORDS if python else {}
        self._key_sign = "=" if python else ":"
        self._brackets: Mapping[str, str] = {"(": "[", ")": "]", "=": ":"} if python else {}
        self._python = python
        self._depth = int(python)  # that of the call
        self._closing = ""  # what ends the string that is being read
        self.rest = ""
        self.is_done = False

    @property
    def inside_string(self) -> bool:
        return bool(self._closing)

    def translate(self, text: str) -> str:
        """The JSON that is certain now that this text follows. Raises MalformedCallError for an unknown escape."""
        self.rest += text
        written: list[str] = []
        while self.rest and not self.is_done:
            step = self._outside if not self._closing else self._in_quotes if self._closing in self._quotes else self._in_marks
            piece = step(self.rest)
            if piece is None:
                break
            json_text, length = piece
            written.append(json_text)
            self.rest = self.rest[length:]
        return "".join(written)

    def _outside(self, text: str) -> tuple[str, int] | None:
        for opening, closing in self._marks.items():
            if text.startswith(opening):
                self._closing = closing
                return '"', len(opening)
            if opening.startswith(text):
                return None
        if text[0] in self._quotes:
            self._closing = text[0]
            return '"', 1
        if word := _WORD.match(text):
            after = _NO_SPACE.search(text, word.end())
            if after is None:
                return None
            is_key = after[0] == self._key_sign
            return (json.dumps(word[0], ensure_ascii=False) if is_key else self._words.get(word[0], word[0])), word.end()
        if text[0] in "([{":
            self._depth += 1
        elif text[0] in ")]}":
            self._depth -= 1
            self.is_done = self._depth <= 0
            if self.is_done and self._python:
                return "", 1
        return self._brackets.get(text[0], text[0]), 1

    def _in_marks(self, text: str) -> tuple[str, int] | None:
        at = text.find(self._closing)
        if at >= 0:
            length, self._closing = at + len(self._closing), ""
            return f'{_escaped(text[:at])}"', length
        safe = len(text) - _overlap(text, self._closing)
        return (_escaped(text[:safe]), safe) if safe else None

    def _in_quotes(self, text: str) -> tuple[str, int] | None:
        if plain := _PLAIN.match(text):
            return _escaped(plain[0]), plain.end()
        if text[0] != "\\":
            is_end = text[0] == self._closing
            if is_end:
                self._closing = ""
            return ('"' if is_end else _escaped(text[0])), 1
        found = _ESCAPE.match(text, partial=True)
        if found is None:
            raise MalformedCallError("a string has an unknown escape")
        if found.partial:
            return None
        code = found[0][1:]
        if code[0] == "u":
            return found[0], found.end()  # JSON's own, halves of a surrogate pair included
        character = chr(int(code[1:], 16)) if code[0] in "xU" else _ESCAPED.get(code, code)
        return _escaped(character), found.end()


class PythonCallsReader(CallReader):
    """A region of calls as Python writes them, ``f(a='x', b=1)``: one, or several in a list or one a line."""

    def __init__(self, sink: CallSink, opening: str) -> None:
        super().__init__(sink, opening)
        self._arguments: Literals | None = None

    @property
    def inside_string(self) -> bool:
        return self._arguments is not None and self._arguments.inside_string

    def close(self) -> None:
        if self._arguments is not None or self._buffer.strip(" \t\r\n[],;"):
            raise MalformedCallError("the call is not whole")
        super().close()

    def _step(self) -> bool:
        if self._arguments is None:
            self._buffer = self._buffer.lstrip(" \t\r\n[],;")
            if not self._buffer:
                return False
            found = _NAME.match(self._buffer, partial=True)
            if found is None:
                raise MalformedCallError("this is no call")
            if found.partial:
                return False
            self._sink.begin(found[1])
            self._sink.arguments("{")
            self._arguments = Literals(python=True)
            self._buffer = self._buffer[found.end() :]
        self._sink.arguments(self._arguments.translate(self._buffer))
        self._buffer = ""
        if not self._arguments.is_done:
            return False
        self._sink.arguments("}")
        self._buffer, self._arguments = self._arguments.rest, None
        self._end()
        return True


def _overlap(text: str, marker: str) -> int:
    """The length of the longest end of the text that the marker begins with."""
    return next((n for n in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:n])), 0)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
