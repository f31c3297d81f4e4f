"""Calls whose arguments are each in a tag of their own (`xml-inline`), turned into JSON as they arrive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jaxserve.chat_parsing.calls import CallReader, CallSink, MalformedCallError
from jaxserve.chat_parsing.scanner import ValueScanner
from jaxserve.chat_parsing.search import Match, Search
from jaxserve.chat_parsing.template import TagPattern
from jaxserve.chat_parsing.tools import json_or_text, typed_json, types_of

_WRAPPER = "arguments"


class TagsReader(CallReader):
    """A region of tags, one for each argument of the call that its opening marker names.

    The text of an argument that its tool calls a string is written as it comes; other values when they are whole. Where
    the tool does not say, a value is what `value_parser` of the template makes of it. A group `text` of the tag's pattern
    tells strings from what else the tool allows.

    What models leave out is recovered: a value also ends where the tag of another parameter of the tool begins, which has no
    value yet (of a tool that is not known: at the beginning of a line); and at a marker that closes the region, if the
    response has no other end of the value. A parameter `arguments`, which the tool does not have, is the object of arguments;
    so is an object instead of tags.
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
        self._keys: set[str] = set()
        self._skipped: list[str] = []  # text before the first tag
        self._types: tuple[str, ...] | None = None  # of the value that is being read
        self._is_text = False
        self._is_wrapper = False
        self._at_start = False
        self._search: Search | None = None  # for the next tag, or for the end of the value
        self._value: ValueScanner | None = None  # what of it was read to tell whether a tag is in a string, if it is JSON
        self._scanned_to = 0

    @property
    def inside_string(self) -> bool:
        return self._types is not None

    def close(self, marker: str = "") -> str:
        if self._types is not None and marker:
            self._write_value(self._text.take().rstrip(), is_whole=True)
        if self._types is not None or not self._begun:
            raise MalformedCallError("the call is not whole")
        if not self._keys:
            self._write_untagged("".join([*self._skipped, self._text.take()]).strip())
        self._sink.arguments("{}" if self._separator == "{" else "}")
        self._end()
        return ""

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
        if not self._keys:
            self._skipped.append(self._text.take(search.certain_to))
        self._text.at = search.certain_to
        if not is_found:
            return False
        assert search.match is not None
        self._text.at = search.match.end
        groups = search.match.groups
        tool, key = self._sink.tool(self._name), groups["key"]
        types = () if tool is None else types_of(tool.property_schema(key), tool.parameters)
        self._types = _said(types, groups, tells_text=self._pattern.tells_text)
        self._is_wrapper = key == _WRAPPER and tool is not None and tool.property_schema(key) is None
        self._is_text = self._types == ("string",) and not self._is_wrapper
        self._keys.add(key)
        if not self._is_wrapper:
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
        search = self._search or Search(self._pattern.end, self._text, self._text.at)
        match = search.match if self._found(search) else None
        is_end = match is not None and self._is_end(match)
        if is_end or self._is_text:
            self._write_value(self._text.take(search.certain_to), is_whole=is_end)
        if match is None:
            return False
        if is_end:
            self._text.at = match.end
        else:
            self._search = Search(self._pattern.end, self._text, match.end + ("key" in match.groups))
        return True

    def _write_value(self, text: str, *, is_whole: bool) -> None:
        """Write the text of a value, or a piece of it, which has to be a string's."""
        assert self._types is not None
        if self._is_text:
            self._sink.arguments(_json(text)[1:-1] + ('"' if is_whole else ""))
        else:
            self._sink.meter.examined += (1 + min(len(self._types), 2)) * len(text)  # as JSON, as an object, as a list
            if self._is_wrapper:
                self._write_wrapped(text, self._types)
            else:
                self._sink.arguments(typed_json(text, self._types, reads_json=self._reads_json))
        if is_whole:
            self._types = None

    def _write_untagged(self, text: str) -> None:
        """Write the members of an object that stands instead of tags."""
        if text:
            self._sink.check_object(text)
            self._write_wrapped(text, ())

    def _write_wrapped(self, text: str, types: tuple[str, ...]) -> None:
        """Write the members of an object, or another value as that of the parameter."""
        members = f"{_json(_WRAPPER)}: {typed_json(text, types, reads_json=self._reads_json)}"
        if isinstance(json_or_text(text), dict):
            members = text.strip()[1:-1].strip()
        if members:
            self._sink.arguments(f"{self._separator}{members}")
            self._separator = ", "

    def _is_end(self, match: Match) -> bool:
        """Whether the value ends with a match: the end of its tag, or the beginning of the next one."""
        if not self._is_text and self._ends_in_string(match.start):
            return False
        if "key" not in match.groups:
            return True
        tool, key = self._sink.tool(self._name), match.groups["key"]
        if tool is None:
            return "\n" in self._text.text(match.start, match.end)
        return key not in self._keys and tool.property_schema(key) is not None

    def _ends_in_string(self, end: int) -> bool:
        """Whether a tag at `end` is in a string of JSON, and so does not end the value."""
        if self._value is None:
            return False
        text = self._text.text(self._scanned_to, end)
        if self._scanned_to == self._text.at:
            text = text.lstrip()
            if text[:1] not in ("{", "["):
                self._value = None
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
