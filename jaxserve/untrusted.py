"""Bounds on untrusted JSON values, and the errors for values beyond them."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from typing import Any, NoReturn

import msgspec

from jaxserve.errors import InvalidRequestError, JaxserveError

_LOG = logging.getLogger(__name__)

MAX_NESTING = 200  # lists and objects, one inside another
MAX_DIGITS = 1000  # of integers in JSON schemas and arguments of calls, which may be of any size

_MAX_REREAD = 64 * 1024  # bytes of JSON that two parsers may read
_LONGEST_PATH, _LONGEST_PART = 4096, 255  # bytes that Linux takes
_LEAST, _BEYOND = -(2**63), 2**64
_LARGEST = 10**MAX_DIGITS
_LONGEST_NAME = 80  # characters of a name that a path shows
_MOST_STEPS = 24  # steps that a path shows
# Members that are JSON schemas, or arguments of calls, where they are objects.
_OF_ANY_SIZE = frozenset(
    {"schema", "json_schema", "parameters", "input_schema", "json", "guided_json", "structural_tag", "input"}
)
_LONG_INTEGER = b"0" * 19
_DIGITS_AS_ZERO = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else ord(" ") for byte in range(256))
# Exponents that may be too large, words for numbers that are not finite, halves of surrogate pairs.
_ODD = re.compile(r"[0-9][eE]\+?[0-9]{3}|\\u[dD][89a-fA-F]|[\ud800-\udfff]|NaN|Infinity")

_Link = tuple[Any, str | int]  # the link of the containing value, or None, and the step from it


def check_json(value: Any, text: str | bytes, param: str | None = None, *, any_size: bool = False) -> None:
    """Raise InvalidRequestError naming the place of a value that no request needs and that code further in may fail at.

    Those are integers beyond 64 bits, numbers that are not finite, halves of surrogate pairs, and deep nesting.

    Args:
        value: what `text` was read as.
        text: JSON; as bytes by msgspec, which itself refuses numbers that are not finite and halves of surrogate pairs.
        param: the field that the text is, for errors; without it paths are the fields.
        any_size: whether integers may have up to MAX_DIGITS digits, as in JSON schemas.
    """
    data = text if isinstance(text, bytes) else text.encode(errors="replace")
    odd = (isinstance(text, str) and _ODD.search(text) is not None) or _has_long_integer(data)
    if odd or (_has_many_brackets(data) and _is_deep(value)):
        _Check(param, any_size=any_size).run(value)


def decode_json(data: bytes) -> tuple[Any, bytes | str]:
    """The value of JSON, and its text for `check_json`: a str for JSON that msgspec does not read, and that is to be refused.

    Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError.
    """
    try:
        return msgspec.json.decode(data), data
    except msgspec.DecodeError:
        if len(data) < _MAX_REREAD:
            with suppress(ValueError, RecursionError):
                text = data.decode()
                return json.loads(text), text
        raise


def _has_many_brackets(text: bytes) -> bool:
    return text.count(b"[") + text.count(b"{") > MAX_NESTING


def _has_long_integer(text: bytes) -> bool:
    return _LONG_INTEGER in text.translate(_DIGITS_AS_ZERO)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_NESTING):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


class _Check:
    def __init__(self, param: str | None, *, any_size: bool) -> None:
        self._param = param
        self._any_size = any_size

    def run(self, root: Any) -> None:
        waiting: list[tuple[Any, _Link | None, int, bool]] = [([root], None, 0, self._any_size)]
        while waiting:
            value, link, depth, any_size = waiting.pop()
            if depth > MAX_NESTING:
                self._refuse(link, f"is nested too deeply: at most {MAX_NESTING} lists and objects may be inside one another")
            for step, inner in value.items() if isinstance(value, dict) else enumerate(value):
                here = None if depth == 0 else (link, step)
                if isinstance(inner, dict | list):
                    waiting.append((inner, here, depth + 1, any_size or (isinstance(inner, dict) and step in _OF_ANY_SIZE)))
                else:
                    self._scalar(inner, here, any_size=any_size)
                if isinstance(step, str) and not _is_encodable(step):
                    self._refuse(link, f"has the name {shown(step)}, which has half of a surrogate pair")

    def _scalar(self, value: Any, link: _Link | None, *, any_size: bool) -> None:
        if isinstance(value, str):
            if not _is_encodable(value):
                self._refuse(link, "has half of a surrogate pair")
        elif isinstance(value, float):
            if not isfinite(value):
                self._refuse(link, "must be a finite number")
        elif isinstance(value, int):
            if any_size and not -_LARGEST < value < _LARGEST:
                self._refuse(link, f"must be an integer of at most {MAX_DIGITS} digits")
            if not any_size and not _LEAST <= value < _BEYOND:
                self._refuse(link, "must be an integer of 64 bits")

    def _refuse(self, link: _Link | None, what: str) -> NoReturn:
        path = _path(link)
        if self._param is None:
            raise InvalidRequestError(f"{path or 'the body'} {what}", param=path or None)
        raise InvalidRequestError(f"{self._param}{': ' * bool(path)}{path} {what}", param=self._param)


def check_path(path: str, param: str) -> None:
    """Raise InvalidRequestError for a path that no file system has."""
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{param} has half of a surrogate pair", param=param) from error
    if b"\0" in encoded:
        raise InvalidRequestError(f"{param} must not have the character U+0000", param=param)
    if len(encoded) >= _LONGEST_PATH or max(map(len, encoded.split(b"/"))) > _LONGEST_PART:
        what = f"{param} must be a path of less than {_LONGEST_PATH} bytes, with names of at most {_LONGEST_PART}"
        raise InvalidRequestError(f"{what}, got {len(encoded)} bytes", param=param)


@contextmanager
def refused(param: str | None) -> Iterator[None]:
    """Errors of the work on a request that come from its values become an InvalidRequestError that names the field."""
    try:
        yield
    except JaxserveError:
        raise
    except (RecursionError, OverflowError, MemoryError, ValueError) as error:  # a UnicodeError is a ValueError
        _LOG.warning("refused a request for an unexpected error", exc_info=error)
        what = f"{param or 'the request'} cannot be processed: {type(error).__name__}: {str(error)[:200]}"
        raise InvalidRequestError(what, param=param) from error


def shown(text: str) -> str:
    """A text in quotes, escaped and cut, as messages may have it."""
    return f"{text!r:.{_LONGEST_NAME}}"


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _path(link: _Link | None) -> str:
    steps: list[str | int] = []
    while link is not None:
        link, step = link
        steps.append(step)
    return "".join(_steps(reversed(steps[-_MOST_STEPS:]))) + ("..." if len(steps) > _MOST_STEPS else "")


def _steps(steps: Iterable[str | int]) -> Iterator[str]:
    for place, step in enumerate(steps):
        if isinstance(step, int):
            yield f"[{step}]"
        elif len(step) <= _LONGEST_NAME and step.isprintable() and _is_encodable(step):
            yield f".{step}" if place else step
        else:
            yield f"[{shown(step)}]"
