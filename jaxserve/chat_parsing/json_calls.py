"""Calls that are JSON: a region that is the arguments, or objects (alone, in a list, in a row) with name and arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from jaxserve.chat_parsing.automaton import Pattern
from jaxserve.chat_parsing.calls import CallReader, CallSink, MalformedCallError
from jaxserve.chat_parsing.literals import Dialect, Literals
from jaxserve.chat_parsing.python_literals import read_object
from jaxserve.chat_parsing.scanner import ValueScanner
from jaxserve.chat_parsing.second_reading import FoundCall, ObjectKeys, SecondReading
from jaxserve.chat_parsing.stream import TextStream

_STRING = Pattern(r'(?P<string>"(?:[^"\\]|\\.)*")')
_KEY = Pattern(r'(?P<string>"(?:[^"\\]|\\.)*")\s*:')
_SCALAR = Pattern(r"(?P<scalar>[^\s,\[\]{}\"]+)")
_INK = re.compile(r"\S")
_OBJECT = re.compile(r"[^ \t\r\n\[\],;]")
_KEY_BEGIN = re.compile(r"[^ \t\r\n,]")
# Families say one, their models now and then the other.
_NAMES = frozenset({"name", "tool_name"})
_ARGUMENTS = frozenset({"arguments", "parameters"})
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
    """A region that is the arguments of the call which its opening marker names.

    A name that is only a number, and no tool's, is a counter: the call is of the one tool that takes such arguments.
    """

    def __init__(self, sink: CallSink, opening: str, name: str, call_id: str | None, dialect: Dialect | None = None) -> None:
        super().__init__(sink, opening, dialect)
        self._name, self._id = name, call_id
        self._begun = False
        self._counted: list[str] | None = None  # the arguments of a call whose marker has a counter for a name
        if name.isdecimal() and (sink.takes_any_name or not sink.knows(name)):
            self._counted = []

    def again(self) -> CallReader | None:
        if self.ended_any or self._literals is not None:
            return None
        return SecondReading(self._sink, self.remains, self._calls)

    def _calls(self, text: str, sink: CallSink) -> Iterator[FoundCall]:
        """The call, if the text is an object that is not quite JSON."""
        arguments = read_object(text.strip())
        if arguments is not None:
            written = json.dumps(arguments, ensure_ascii=False)
            name = self._name if self._counted is None else sink.only_tool(written)
            yield FoundCall(0, len(text), name, written, self._id)

    def _step(self) -> bool:
        if not self._begun and self._counted is None:
            self._sink.begin(self._name, self._id)
        self._begun = True
        if self._scanner is None:
            sign = self._text.find(_INK)
            if not sign:
                return False
            if self.ended_any or sign != "{":
                raise MalformedCallError("there is more than an object")
        if not self._stream(self._sink.arguments if self._counted is None else self._counted.append):
            return False
        if self._counted is not None:
            arguments = "".join(self._counted)
            self._sink.begin(self._sink.only_tool(arguments), self._id)
            self._sink.arguments(arguments)
        self._end()
        return True


class EnvelopeReader(JsonReader):
    """A region of objects that have a key for the name and one for the arguments.

    `known_keys_only`: an object with any other key is no call, nor is one without arguments if any name may be a tool's. For
    regions that begin without a marker, where JSON that is an answer should be told from a call as early as can be.
    `is_list`: objects are in a list, so that others may be calls if one is broken.
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
        is_list: bool = False,
        dialect: Dialect | None = None,
    ) -> None:
        super().__init__(sink, opening, dialect)
        names = _NAMES if name_key in _NAMES else {name_key}
        arguments = _ARGUMENTS if arguments_key in _ARGUMENTS else {arguments_key}
        self._read_value: dict[str, Callable[[], bool]] = {
            **dict.fromkeys(arguments, self._read_arguments),
            **dict.fromkeys(names, self._read_name),
        }
        if id_key is not None:
            self._read_value[id_key] = self._read_id
        known = frozenset({*self._read_value, *_ALWAYS_KNOWN}) if known_keys_only else None
        self._keys = ObjectKeys(frozenset(names), frozenset(arguments), id_key, known)
        self._may_recover = dialect is None and (is_list or not known_keys_only)
        self._has_objects = False
        self._known_keys_only = known_keys_only
        self._step_of_state = self._read_between

    def close(self, marker: str = "") -> str:
        if self._step_of_state != self._read_between:
            raise MalformedCallError("the call is not whole")
        return super().close(marker)

    def again(self) -> CallReader | None:
        if not (self._may_recover and self._has_objects):
            return None
        return SecondReading(self._sink, self.remains, self._keys.calls)

    def _step(self) -> bool:
        return self._step_of_state()

    def _read_between(self) -> bool:
        sign = self._text.find(_OBJECT)
        if not sign:
            return False
        if sign != "{":
            raise MalformedCallError("this is no object")
        self._text.at += 1
        self._has_objects = True
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
                if self._known_keys_only and self._sink.takes_any_name:
                    raise MalformedCallError("an object with a name alone may be no call")
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
        if self._early is None:
            raise MalformedCallError("the call has two names")
        self._sink.begin(name, self._id)
        for piece in self._early:
            self._sink.arguments(piece)
        self._early = None
        return True

    def _read_id(self) -> bool:
        sign = self._text.find(_INK)
        if sign and sign in '"[{':
            call_id = self._read_string()
        else:
            call_id = self._read_number()
        if call_id is None:
            return False
        self._id = call_id
        return True

    def _read_number(self) -> str | None:
        """An integer as an id; an empty id for another scalar. None if it is not there whole."""
        found = self._token(_SCALAR) if self._text.find(_INK) else None
        if found is None:
            return None
        self._step_of_state = self._read_key
        scalar = found.groups["scalar"]
        return scalar if scalar.isdecimal() else ""

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
