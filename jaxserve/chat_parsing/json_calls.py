"""Calls that are JSON: a region that is the arguments, or objects (alone, in a list, in a row) with name and arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from jaxserve.chat_parsing.automaton import Pattern
from jaxserve.chat_parsing.calls import CallReader, CallSink, MalformedCallError
from jaxserve.chat_parsing.literals import Dialect, Literals
from jaxserve.chat_parsing.scanner import ValueScanner
from jaxserve.chat_parsing.stream import TextStream

_STRING = Pattern(r'(?P<string>"(?:[^"\\]|\\.)*")')
_KEY = Pattern(r'(?P<string>"(?:[^"\\]|\\.)*")\s*:')
_SCALAR = Pattern(r"(?P<scalar>[^\s,\[\]{}\"]+)")
_INK = re.compile(r"\S")
_OBJECT = re.compile(r"[^ \t\r\n\[\],;]")
_KEY_BEGIN = re.compile(r"[^ \t\r\n,]")
_ARGUMENTS = frozenset({"arguments", "parameters"})  # families say one, their models now and then the other
_ALWAYS_KNOWN = frozenset({"type", "id"})


class JsonReader(CallReader):
    """`dialect`: what the JSON is written in, if it is another one."""

    def __init__(self, sink: CallSink, opening: str, dialect: Dialect | None) -> None:
        super().__init__(sink, opening)
        self._written = TextStream(sink.meter)
        self._literals = None if dialect is None else Literals(self._written, dialect)
        self._scanner: ValueScanner | None = None

    @property
    def inside_string(self) -> bool:
        return self._scanner is not None and self._scanner.in_string

    def _translated(self, text: str) -> str:
        if self._literals is None:
            return text
        self._written.push(text)
        translated = self._literals.translate()
        if self._literals.is_done:
            translated += self._written.take()
        self._written.forget(self._written.at)
        return translated

    def _stream(self, write: Callable[[str], None]) -> bool:
        """Write what the text has of an object that began; whether it is whole now."""
        scanner = self._scanner = self._scanner or ValueScanner()
        while not scanner.is_done and self._text.at < self._text.end:
            chunk, index = self._text.chunk(self._text.at)
            end = scanner.take(chunk, index)
            self._sink.meter.examined += end - index
            write(self._text.take(self._text.at + end - index))
        if scanner.is_done:
            self._scanner = None
        return scanner.is_done


class ArgumentsReader(JsonReader):
    """A region that is the arguments of the call which its opening marker names."""

    def __init__(self, sink: CallSink, opening: str, name: str, call_id: str | None, dialect: Dialect | None = None) -> None:
        super().__init__(sink, opening, dialect)
        self._name, self._id = name, call_id
        self._begun = False

    def _step(self) -> bool:
        if not self._begun:
            self._sink.begin(self._name, self._id)
            self._begun = True
        if self._scanner is None:
            sign = self._text.find(_INK)
            if not sign:
                return False
            if self.ended_any or sign != "{":
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
        dialect: Dialect | None = None,
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
        sign = self._text.find(_OBJECT)
        if not sign:
            return False
        if sign != "{":
            raise MalformedCallError("this is no object")
        self._text.at += 1
        self._id: str | None = None
        self._early: list[str] | None = []  # arguments that came before the name
        self._has_arguments = False
        self._step_of_state = self._read_key
        return True

    def _read_key(self) -> bool:
        sign = self._text.find(_KEY_BEGIN)
        if not sign:
            return False
        if sign == "}":
            self._text.at += 1
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
        key = _string(found.groups["string"])
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
        found = self._token(_STRING) if self._text.find(_INK) else None
        if found is None:
            return None
        self._step_of_state = self._read_key
        return _string(found.groups["string"])

    def _read_arguments(self) -> bool:
        write = self._sink.arguments if self._early is None else self._early.append
        if self._scanner is None:
            sign = self._text.find(_INK)
            if not sign:
                return False
            if sign != "{":
                return self._read_odd_arguments(sign, write)
        if not self._stream(write):
            return False
        self._has_arguments = True
        self._step_of_state = self._read_key
        return True

    def _read_odd_arguments(self, sign: str, write: Callable[[str], None]) -> bool:
        """Arguments as JSON in a string, or none. `sign`: their first character."""
        if sign == '"':
            text = self._read_string()
            if text is None:
                return False
            self._sink.check_object(text)
            write(text)
            self._has_arguments = True
            return True
        found = self._token(_SCALAR)
        if found is None:
            return False
        if found.groups["scalar"] != "null":
            raise MalformedCallError("the arguments are no object")
        self._step_of_state = self._read_key
        return True

    def _skip(self) -> bool:
        if self._scanner is None:
            sign = self._text.find(_INK)
            if not sign:
                return False
            if sign not in '{["':
                if self._token(_SCALAR) is None:
                    return False
                self._step_of_state = self._read_key
                return True
        if not self._stream(lambda _: None):
            return False
        self._step_of_state = self._read_key
        return True


def _string(token: str) -> str:
    try:
        text = json.loads(token, strict=False)
    except ValueError as error:
        raise MalformedCallError("this is no JSON string") from error
    assert isinstance(text, str)
    return text
