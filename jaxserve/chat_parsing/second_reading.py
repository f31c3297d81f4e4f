"""Regions in which a call was broken, read again when they are whole: their whole calls are calls, the rest is content."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jaxserve.chat_parsing.calls import CallReader, CallSink, MalformedCallError, Unread
from jaxserve.chat_parsing.python_literals import read_object
from jaxserve.chat_parsing.scanner import ValueScanner

_PASSES = 2  # over the text of a region: calls are found and read
_BETWEEN = " \t\r\n[],;"  # around and between calls


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call in a text, from `start` to `end`; `arguments` is the JSON of an object."""

    start: int
    end: int
    name: str
    arguments: str
    id: str | None = None


FindCalls = Callable[[str, CallSink], Iterator[FoundCall]]


class SecondReading(CallReader):
    """Holds a region until it is over. Markers inside its strings close it: one of these strings may have no end."""

    def __init__(self, sink: CallSink, unread: Unread, find: FindCalls) -> None:
        super().__init__(sink, unread.opening)
        self._unread.append(unread.text)
        self._follows_calls = unread.follows_calls
        self._find = find

    @property
    def unread(self) -> str:
        text = super().unread
        return text.strip(_BETWEEN) if self._follows_calls else text

    @property
    def remains(self) -> Unread:
        return Unread(self._opening, self.unread, self._follows_calls)

    def close(self, marker: str = "") -> str:
        text = "".join(self._unread[1:])
        self._sink.meter.examined += _PASSES * len(text)
        rest: list[str] = []
        at = 0
        for call in self._find(text, self._sink):
            if not self._sink.knows(call.name):
                continue
            self._sink.begin(call.name, call.id)
            self._sink.arguments(call.arguments)
            self._end()
            rest.append(text[at : call.start].strip(_BETWEEN))
            at = call.end
        if not self.ended_any:
            raise MalformedCallError("there is no whole call")
        return " ".join(filter(None, [*rest, text[at:].strip(_BETWEEN)]))

    def _translated(self, text: str) -> str:
        return ""

    def _step(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class ObjectKeys:
    """The keys of an object that is a call. `known`: it has no other keys, and it has arguments; None: it may have any."""

    names: frozenset[str]
    arguments: frozenset[str]
    id: str | None
    known: frozenset[str] | None

    def calls(self, text: str, sink: CallSink) -> Iterator[FoundCall]:
        """The objects of a list, or in a row, that are calls. Objects inside other objects are not."""
        at = text.find("{")
        while at >= 0:
            scanner = ValueScanner()
            end = scanner.take(text, at)
            if not scanner.is_done:
                return
            if call := self._call(text, at, end):
                yield call
            at = text.find("{", end)

    def _call(self, text: str, start: int, end: int) -> FoundCall | None:
        value = read_object(text[start:end])
        if value is None:
            return None
        if self.known is not None and not (value.keys() <= self.known and value.keys() & self.arguments):
            return None
        name = next((value[key] for key in value if key in self.names), None)
        arguments: Any = next((value[key] for key in value if key in self.arguments), {})
        call_id = value.get(self.id) if self.id is not None else None
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        written = str(call_id) if isinstance(call_id, str | int) else None
        return FoundCall(start, end, name, json.dumps(arguments, ensure_ascii=False), written)
