"""What reads the calls of a region writes here: calls are numbered, named and checked."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from jaxserve.chat_parsing.automaton import Pattern
from jaxserve.chat_parsing.message import Delta, ToolArgumentsDelta, ToolCallBegin, ToolCallEnd, ToolCallFailed
from jaxserve.chat_parsing.search import Match, TokenMatcher
from jaxserve.chat_parsing.stream import Meter, TextStream
from jaxserve.chat_parsing.tools import Tool


class MalformedCallError(Exception):
    """The text is no call. It becomes content."""


class CallSink:
    """Where readers write calls to. `meter` counts what they examine."""

    def __init__(self, deltas: list[Delta], tools: Mapping[str, Tool] | None, meter: Meter) -> None:
        """`tools` None: a call may have any name."""
        self.meter = meter
        self._deltas = deltas
        self._tools = tools
        self._count = 0
        self._named: tuple[str, str | None] = ("", None)
        self._pieces: list[str] | None = None  # of the arguments of the call that is open
        self.has_calls = False  # whether a call is whole

    @property
    def is_open(self) -> bool:
        return self._pieces is not None

    def tool(self, name: str) -> Tool | None:
        return None if self._tools is None else self._tools.get(name)

    @property
    def takes_any_name(self) -> bool:
        return self._tools is None

    def knows(self, name: str) -> bool:
        """Whether a call may have this name."""
        return self._tools is None or name in self._tools

    def only_tool(self, arguments: str) -> str:
        """The name of the one tool that can be called with these arguments.

        Raises MalformedCallError if there is none or more than one, as the choice would be a guess.
        """
        keys = self.check_object(arguments).keys()
        names = [tool.name for tool in (self._tools or {}).values() if tool.takes(keys)]
        if len(names) != 1:
            raise MalformedCallError(f"{len(names)} tools can be called with these arguments")
        return names[0]

    def begin(self, name: str, call_id: str | None = None) -> None:
        if not name or not self.knows(name):
            raise MalformedCallError(f"there is no tool {name!r:.80}")
        self._named, self._pieces = (name, call_id), []
        self._deltas.append(ToolCallBegin(self._count, name, call_id))

    def arguments(self, text: str) -> None:
        if text and self._pieces is not None:
            self._pieces.append(text)
            self._deltas.append(ToolArgumentsDelta(self._count, text))

    def end(self) -> None:
        self.check_object("".join(self._pieces or ()))
        self._deltas.append(ToolCallEnd(self._count))
        self.has_calls = True
        self._close()

    def check_object(self, text: str) -> Mapping[str, Any]:
        """The JSON object that a text is. Raises MalformedCallError for another text."""
        self.meter.examined += len(text)
        try:
            value = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise MalformedCallError("the arguments are not JSON") from error
        if not isinstance(value, dict):
            raise MalformedCallError("the arguments are no object")
        return value

    def fail(self) -> None:
        if self.is_open:
            self._deltas.append(ToolCallFailed(self._count))
            self._close()

    def restart(self) -> None:
        """Count from here, as calls of the prompt are not the response's; one that is open is."""
        self._count = 0
        self.has_calls = False
        if self._pieces is not None:
            self._deltas[:] = [ToolCallBegin(0, *self._named), ToolArgumentsDelta(0, "".join(self._pieces))]

    def _close(self) -> None:
        self._pieces = None
        self._count += 1


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class Unread(NamedTuple):
    """The text of a region that is not part of a whole call: its opening marker, unless calls came after it, and the rest."""

    opening: str
    text: str
    follows_calls: bool


class CallReader(ABC):
    """Reads the calls of one region, whose text arrives in pieces.

    Attributes:
        ended_any: whether a call of the region is whole.
    """

    def __init__(self, sink: CallSink, opening: str) -> None:
        self._sink = sink
        self._opening = opening
        self._unread = [opening]
        self._text = TextStream(sink.meter)
        self._tokens = TokenMatcher(self._text)
        self._call_end: int | None = None  # where the last call ended, if it did in the piece that is being read
        self.ended_any = False

    @property
    def unread(self) -> str:
        """The text of the region, its opening marker before it, that is not part of a whole call."""
        self._forget_calls()
        return "".join(self._unread)

    @property
    def remains(self) -> Unread:
        text, opening = self.unread, "" if self.ended_any else self._opening
        return Unread(opening, text[len(opening) :], self.ended_any)

    @property
    def inside_string(self) -> bool:
        """Whether a closing marker would stand in the middle of a string, and so close nothing."""
        return False

    def feed(self, text: str) -> None:
        """Raises MalformedCallError where this can be no call."""
        self._unread.append(text)
        self._text.push(self._translated(text))
        while self._step():
            pass
        self._forget_calls()
        self._text.forget(self._text.at)

    def close(self, marker: str = "") -> str:
        """The region is over; returns its text that belongs to no call.

        `marker`: what closes it; empty at the end of the response and before the next region. Raises MalformedCallError if
        that is in the middle of a call, or there was none.
        """
        if self._sink.is_open or not self.ended_any:
            raise MalformedCallError("the call is not whole")
        return ""

    def again(self) -> CallReader | None:
        """After a MalformedCallError: the reader of the unread text that recovers whole calls; None if it is content."""
        return None

    def _translated(self, text: str) -> str:
        return text

    @abstractmethod
    def _step(self) -> bool:
        """Read on in the text; whether there may be more to read in it."""

    def _token(self, pattern: Pattern) -> Match | None:
        """Read a token; None if it is not there whole. Raises MalformedCallError if there is another one."""
        search = self._tokens.match(pattern)
        if search.is_over and search.match is None:
            raise MalformedCallError("there is another token")
        return search.match

    def _end(self) -> None:
        self._sink.end()
        self.ended_any = True
        self._call_end = self._text.at

    def _forget_calls(self) -> None:
        if self._call_end is not None:
            self._unread = [self._text.text(self._call_end, self._text.end)]
            self._call_end = None
