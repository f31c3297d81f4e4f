"""Calls written as Python: read as they arrive, and read again with more patience if one of them is broken."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from jaxserve.chat_parsing.automaton import Pattern
from jaxserve.chat_parsing.calls import CallReader, CallSink, MalformedCallError
from jaxserve.chat_parsing.literals import PYTHON, Literals
from jaxserve.chat_parsing.python_literals import LiteralReader
from jaxserve.chat_parsing.second_reading import FoundCall, ObjectKeys, SecondReading

_SEPARATED = re.compile(r"[^ \t\r\n\[\],;]")
_NAME = Pattern(r"(?P<name>[A-Za-z_][\w.\-]*)\s*\(")
_LIST_END = re.compile(r"\s*\]")
_OBJECTS = ObjectKeys(frozenset({"name"}), frozenset({"arguments", "parameters"}), None, None)  # which some write instead
_MOST_READ = 2  # times the text: calls are found, and broken ones with strings that do not end
_CALL = re.compile(r"[\s\[\],;]*(?P<call>(?P<name>[A-Za-z_][\w.\-]*)\s*\()")


class PythonCallsReader(CallReader):
    """A region of calls as Python writes them, ``f(a='x', b=1)``: one, or several in a list or one a line."""

    def __init__(self, sink: CallSink, opening: str) -> None:
        super().__init__(sink, opening)
        self._arguments: Literals | None = None
        self._in_call = False

    @property
    def inside_string(self) -> bool:
        return self._arguments is not None and self._arguments.inside_string

    @property
    def unread(self) -> str:
        text = super().unread
        end = _LIST_END.match(text) if self.ended_any and not self._in_call else None
        return text if end is None else text[end.end() :]

    def close(self, marker: str = "") -> str:
        if self._arguments is not None or self._text.find(_SEPARATED):
            raise MalformedCallError("the call is not whole")
        return super().close(marker)

    def again(self) -> CallReader | None:
        unread = self.remains
        if self._in_call:
            return SecondReading(self._sink, unread, python_calls)
        is_json = not self.ended_any and unread.text.lstrip(" \t\r\n[").startswith("{")
        return SecondReading(self._sink, unread, _OBJECTS.calls) if is_json else None

    def _step(self) -> bool:
        if self._arguments is None:
            found = self._token(_NAME) if self._text.find(_SEPARATED) else None
            if found is None:
                return False
            self._in_call = True
            self._sink.begin(found.groups["name"])
            self._sink.arguments("{")
            self._arguments = Literals(self._text, PYTHON)
        self._sink.arguments(self._arguments.translate())
        if not self._arguments.is_done:
            return False
        self._sink.arguments("}")
        self._arguments = None
        self._end()
        self._in_call = False
        return True


def python_calls(text: str, sink: CallSink) -> Iterator[FoundCall]:
    """The calls of a text that are whole, up to where it is no list of calls any more.

    A call with a value that is no literal, without a keyword or of no tool is skipped, with the calls inside it.
    """
    at, left = 0, _MOST_READ * len(text)
    while left > 0 and (found := _CALL.match(text, at)):
        reader = LiteralReader(text, found.end())
        try:
            arguments = json.dumps(reader.arguments(sink.tool(found["name"])), ensure_ascii=False, allow_nan=False)
            at = reader.at
            yield FoundCall(found.start("call"), at, found["name"], arguments)
        except (MalformedCallError, ValueError, RecursionError):
            try:
                at = LiteralReader(text, found.end()).skip()
            except MalformedCallError:
                return
        left -= reader.at - found.start("call")
