"""Calls whose arguments are each in a tag of their own (`xml-inline`), turned into JSON as they arrive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jaxserve.chat_parsing.calls import CallReader, CallSink, MalformedCallError
from jaxserve.chat_parsing.scanner import ValueScanner
from jaxserve.chat_parsing.search import Search
from jaxserve.chat_parsing.template import TagPattern
from jaxserve.chat_parsing.tools import typed_json, types_of


class TagsReader(CallReader):
    """A region of tags, one for each argument of the call that its opening marker names.

    The text of an argument that its tool calls a string is written as it comes; other values when they are whole. Where
    the tool does not say, a value is what `value_parser` of the template makes of it. A group `text` of the tag's pattern
    tells strings from what else the tool allows.
    """

    def __init__(
        self,
        sink: CallSink,
        opening: str,
        name: str,
        call_id: str | None,
        pattern: TagPattern,
        value_parser: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(sink, opening)
        self._name, self._id, self._pattern = name, call_id, pattern
        self._reads_json = value_parser is not None and value_parser.get("name") == "json"
        self._begun = False
        self._separator = "{"
        self._types: tuple[str, ...] | None = None  # of the value that is being read
        self._is_text = False
        self._at_start = False
        self._search: Search | None = None  # for the next tag, or for the end of the value
        self._value = ValueScanner()  # what of it was read to tell whether a tag is in a string
        self._scanned_to = 0

    @property
    def inside_string(self) -> bool:
        return self._types is not None

    def close(self) -> None:
        if self._types is not None or not self._begun:
            raise MalformedCallError("the call is not whole")
        self._sink.arguments("{}" if self._separator == "{" else "}")
        self._end()

    def _step(self) -> bool:
        if not self._begun:
            self._sink.begin(self._name, self._id)
            self._begun = True
        return self._read_head() if self._types is None else self._read_value()

    def _found(self, search: Search) -> bool:
        """Read on in a search; whether it has found something, which is read then."""
        search.advance()
        self._search = search if search.match is None else None
        return search.match is not None

    def _read_head(self) -> bool:
        search = self._search or Search(self._pattern.head, self._text, self._text.at)
        is_found = self._found(search)
        self._text.at = search.certain_to
        if not is_found:
            return False
        assert search.match is not None
        self._text.at = search.match.end
        groups = search.match.groups
        tool, key = self._sink.tool(self._name), groups["key"]
        types = () if tool is None else types_of(tool.property_schema(key), tool.parameters)
        self._types = _said(types, groups, tells_text=self._pattern.tells_text)
        self._is_text = self._types == ("string",)
        self._sink.arguments(f"{self._separator}{_json(key)}: " + ('"' if self._is_text else ""))
        self._separator = ", "
        self._at_start = True
        return True

    def _read_value(self) -> bool:
        assert self._types is not None
        if self._at_start:
            if self._token(self._pattern.lead) is None:
                return False
            self._at_start, self._value, self._scanned_to = False, ValueScanner(), self._text.at
        search = self._search or Search(self._pattern.tail, self._text, self._text.at)
        is_whole = self._found(search)
        if self._is_text:
            self._sink.arguments(_json(self._text.take(search.certain_to))[1:-1] + ('"' if is_whole else ""))
        if search.match is None:
            return False
        if not self._is_text:
            if self._ends_in_string(search.match.start):
                self._search = Search(self._pattern.tail, self._text, search.match.end)
                return True
            value = self._text.take(search.match.start)
            self._sink.meter.examined += (1 + min(len(self._types), 2)) * len(value)  # as JSON, as an object, as a list
            self._sink.arguments(typed_json(value, self._types, reads_json=self._reads_json))
        self._text.at = search.match.end
        self._types = None
        return True

    def _ends_in_string(self, end: int) -> bool:
        """Whether a tag at `end` is in a string of JSON, and so does not end the value."""
        text = self._text.text(self._scanned_to, end)
        if self._scanned_to == self._text.at:
            text = text.lstrip()
            if text[:1] not in ("{", "["):
                return False
        self._scanned_to = end
        self._value.take(text)
        return self._value.in_string


def _said(types: tuple[str, ...], groups: Mapping[str, str], *, tells_text: bool) -> tuple[str, ...]:
    """Of the types that a tool allows, those that the tag says; all of them if it says none of these."""
    if not tells_text:
        return types
    is_text = "text" in groups
    return tuple(name for name in types if (name == "string") == is_text) or types or (("string",) if is_text else ())


def _json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
