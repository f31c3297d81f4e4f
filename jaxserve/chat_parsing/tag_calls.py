"""Calls whose arguments are each in a tag of their own (`xml-inline`), turned into JSON as they arrive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import regex

from jaxserve.chat_parsing.calls import CallReader, CallSink, MalformedCallError
from jaxserve.chat_parsing.scanner import ValueScanner
from jaxserve.chat_parsing.tools import typed_json, types_of

_LEAD = regex.compile(r"(?:\\[ns][*?])?$")
_VALUE_GROUP = regex.compile(r"\(\?P<value>(?:\.[*+]\??|\[\^[^\]]*\][*+]\??)\)")


@dataclass(frozen=True, slots=True)
class TagPattern:
    """A tag's pattern cut at its value, which can be read so before it is whole. `lead`: white space that may lead it."""

    head: regex.Pattern[str]
    lead: regex.Pattern[str]
    tail: regex.Pattern[str]

    @classmethod
    def cut(cls, pattern: str) -> TagPattern | None:
        """None if the value is anything but plain text between two patterns."""
        parts = _VALUE_GROUP.split(pattern)
        if len(parts) != 2 or "(?P<key>" not in parts[0]:
            return None
        lead = _LEAD.search(parts[0])
        assert lead is not None
        try:
            return cls(*(regex.compile(part, regex.DOTALL) for part in (parts[0][: lead.start()], lead[0], parts[1])))
        except regex.error:
            return None


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

    def _read_head(self) -> bool:
        found = self._pattern.head.search(self._buffer, partial=True)
        if found is None or found.partial:
            return False
        tool, key = self._sink.tool(self._name), found["key"]
        types = () if tool is None else types_of(tool.property_schema(key), tool.parameters)
        self._types = _said(types, found.groupdict())
        self._is_text = self._types == ("string",)
        self._sink.arguments(f"{self._separator}{_json(key)}: " + ('"' if self._is_text else ""))
        self._separator = ", "
        self._buffer = self._buffer[found.end() :]
        self._at_start = True
        return True

    def _read_value(self) -> bool:
        assert self._types is not None
        if self._at_start:
            lead = self._pattern.lead.match(self._buffer)
            rest = self._buffer[lead.end() :] if lead is not None else self._buffer
            self._buffer, self._at_start = rest or self._buffer, not rest
            if not rest:
                return False
        found = self._tail()
        is_whole = found is not None and not found.partial
        end = len(self._buffer) if found is None else found.start()
        if self._is_text:
            self._sink.arguments(_json(self._buffer[:end])[1:-1] + ('"' if is_whole else ""))
            self._buffer = self._buffer[end:]
            end = 0
        if found is None or not is_whole:
            return False
        if not self._is_text:
            self._sink.arguments(typed_json(self._buffer[:end], self._types, reads_json=self._reads_json))
        self._buffer = self._buffer[end + len(found[0]) :]
        self._types = None
        return True

    def _tail(self) -> regex.Match[str] | None:
        """The end of the value, or what may be the beginning of it; a tag in a string of JSON is none."""
        found = self._pattern.tail.search(self._buffer, partial=True)
        while found is not None and not found.partial and not self._is_text and _ends_in_string(self._buffer[: found.start()]):
            found = self._pattern.tail.search(self._buffer, found.end(), partial=True)
        return found


def _said(types: tuple[str, ...], groups: Mapping[str, str | None]) -> tuple[str, ...]:
    """Of the types that a tool allows, those that the tag says; all of them if it says none of these."""
    if "text" not in groups:
        return types
    is_text = groups["text"] is not None
    return tuple(name for name in types if (name == "string") == is_text) or types or (("string",) if is_text else ())


def _ends_in_string(text: str) -> bool:
    scanner = ValueScanner()
    start = text.lstrip()
    scanner.take(start if start[:1] in ("{", "[") else "")
    return scanner.in_string


def _json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
