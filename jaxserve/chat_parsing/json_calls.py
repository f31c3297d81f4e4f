"""Calls that are JSON: a region that is the arguments, or objects (alone, in a list, in a row) with name and arguments."""

from __future__ import annotations

import json
from collections.abc import Callable

import regex

from jaxserve.chat_parsing.calls import CallReader, CallSink, MalformedCallError, check_object
from jaxserve.chat_parsing.literals import Literals
from jaxserve.chat_parsing.scanner import ValueScanner

_STRING = regex.compile(r'"(?:[^"\\]|\\.)*+"', regex.DOTALL)
_KEY = regex.compile(r'("(?:[^"\\]|\\.)*+")\s*:', regex.DOTALL)
_SCALAR = regex.compile(r"[^\s,\[\]{}\"]+")
_ARGUMENTS = frozenset({"arguments", "parameters"})  # families say one, their models now and then the other
_ALWAYS_KNOWN = frozenset({"type", "id"})


class JsonReader(CallReader):
    """`dialect`: what the JSON is written in, if it is another one."""

    def __init__(self, sink: CallSink, opening: str, dialect: Literals | None) -> None:
        super().__init__(sink, opening)
        self._dialect = dialect
        self._scanner: ValueScanner | None = None

    @property
    def inside_string(self) -> bool:
        return self._scanner is not None and self._scanner.in_string

    def _translated(self, text: str) -> str:
        if self._dialect is None or self._dialect.is_done:
            return text
        translated = self._dialect.translate(text)
        return translated + self._dialect.rest if self._dialect.is_done else translated

    def _stream(self, write: Callable[[str], None]) -> bool:
        """Write what the buffer has of an object that began; whether it is whole now."""
        scanner = self._scanner = self._scanner or ValueScanner()
        end = scanner.take(self._buffer)
        write(self._buffer[:end])
        self._buffer = self._buffer[end:]
        if scanner.is_done:
            self._scanner = None
        return scanner.is_done


class ArgumentsReader(JsonReader):
    """A region that is the arguments of the call which its opening marker names."""

    def __init__(self, sink: CallSink, opening: str, name: str, call_id: str | None, dialect: Literals | None = None) -> None:
        super().__init__(sink, opening, dialect)
        self._name, self._id = name, call_id
        self._begun = False

    def _step(self) -> bool:
        if not self._begun:
            self._sink.begin(self._name, self._id)
            self._begun = True
        if self._scanner is None:
            self._buffer = self._buffer.lstrip()
            if not self._buffer:
                return False
            if self.ended_any or self._buffer[0] != "{":
                raise MalformedCallError("there is more than an object")
        if not self._stream(self._sink.arguments):
            return False
        self._end()
        return True


class EnvelopeReader(JsonReader):
    """A region of objects that have a key for the name and one for the arguments.

    `known_keys_only`: an object with any other key is no call. For regions that begin without a marker, where JSON that
    is an answer should be told from a call as early as can be.
    """

    def __init__(
        self,
        sink: CallSink,
        opening: str,
        *,
        name_key: str,
        arguments_key: str,
        id_key: str | None,
        known_keys_only: bool,
        dialect: Literals | None = None,
    ) -> None:
        super().__init__(sink, opening, dialect)
        keys = dict.fromkeys(_ARGUMENTS if arguments_key in _ARGUMENTS else {arguments_key}, self._read_arguments)
        self._read_value: dict[str, Callable[[], bool]] = {**keys, name_key: self._read_name}
        if id_key is not None:
            self._read_value[id_key] = self._read_id
        self._known_keys_only = known_keys_only
        self._step_of_state = self._read_between

    def close(self) -> None:
        if self._step_of_state != self._read_between:
            raise MalformedCallError("the call is not whole")
        super().close()

    def _step(self) -> bool:
        return self._step_of_state()

    def _read_between(self) -> bool:
        self._buffer = self._buffer.lstrip(" \t\r\n[],;")
        if not self._buffer:
            return False
        if self._buffer[0] != "{":
            raise MalformedCallError("this is no object")
        self._buffer = self._buffer[1:]
        self._id: str | None = None
        self._early: list[str] | None = []  # arguments that came before the name
        self._has_arguments = False
        self._step_of_state = self._read_key
        return True

    def _read_key(self) -> bool:
        self._buffer = self._buffer.lstrip(" \t\r\n,")
        if not self._buffer:
            return False
        if self._buffer[0] == "}":
            self._buffer = self._buffer[1:]
            if not self._sink.is_open:
                raise MalformedCallError("the call has no name")
            if not self._has_arguments:
                self._sink.arguments("{}")
            self._end()
            self._step_of_state = self._read_between
            return True
        found = self._token(_KEY)
        if found is None:
            return False
        key = _string(found[1])
        if self._known_keys_only and key not in self._read_value and key not in _ALWAYS_KNOWN:
            raise MalformedCallError(f"a call has no key {key!r:.80}")
        self._step_of_state = self._read_value.get(key, self._skip)
        return True

    def _read_name(self) -> bool:
        name = self._read_string()
        if name is None:
            return False
        self._sink.begin(name, self._id)
        for piece in self._early or ():
            self._sink.arguments(piece)
        self._early = None
        return True

    def _read_id(self) -> bool:
        call_id = self._read_string()
        if call_id is None:
            return False
        self._id = call_id
        return True

    def _read_string(self) -> str | None:
        self._buffer = self._buffer.lstrip()
        found = self._token(_STRING)
        if found is None:
            return None
        self._step_of_state = self._read_key
        return _string(found[0])

    def _read_arguments(self) -> bool:
        write = self._sink.arguments if self._early is None else self._early.append
        if self._scanner is None:
            self._buffer = self._buffer.lstrip()
            if not self._buffer.startswith("{"):
                return self._read_odd_arguments(write)
        if not self._stream(write):
            return False
        self._has_arguments = True
        self._step_of_state = self._read_key
        return True

    def _read_odd_arguments(self, write: Callable[[str], None]) -> bool:
        """Arguments as JSON in a string, or none."""
        if not self._buffer:
            return False
        if self._buffer[0] == '"':
            text = self._read_string()
            if text is None:
                return False
            check_object(text)
            write(text)
            self._has_arguments = True
            return True
        found = self._token(_SCALAR)
        if found is None:
            return False
        if found[0] != "null":
            raise MalformedCallError("the arguments are no object")
        self._step_of_state = self._read_key
        return True

    def _skip(self) -> bool:
        if self._scanner is None:
            self._buffer = self._buffer.lstrip()
            if not self._buffer:
                return False
            if self._buffer[0] not in '{["':
                if self._token(_SCALAR) is None:
                    return False
                self._step_of_state = self._read_key
                return True
        if not self._stream(lambda _: None):
            return False
        self._step_of_state = self._read_key
        return True

    def _token(self, pattern: regex.Pattern[str]) -> regex.Match[str] | None:
        """Take a token off the buffer; None if it is not there whole. Raises MalformedCallError if there is another one."""
        found = pattern.match(self._buffer, partial=True)
        if found is None:
            raise MalformedCallError("this is not JSON")
        if found.partial or (pattern is _SCALAR and found.end() == len(self._buffer)):
            return None
        self._buffer = self._buffer[found.end() :]
        return found


def _string(token: str) -> str:
    try:
        text = json.loads(token, strict=False)
    except ValueError as error:
        raise MalformedCallError("this is no JSON string") from error
    assert isinstance(text, str)
    return text
