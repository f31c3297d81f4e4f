"""Lines of a job's input: OpenAI's batch JSONL, read as a stream and checked one by one."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.untrusted import check_json, decode_json

INVALID_REQUEST = "invalid_request"  # code of errors that concern one line alone

_METHOD = "POST"
_PIECE = 2**16  # bytes of a line too long that are passed over at once
_CUSTOM_ID = "custom_id"
_FIRST_NAME = re.compile(rb'\s*\{\s*"custom_id"\s*:\s*("(?:[^"\\]|\\.)+")')


@dataclass(frozen=True, slots=True)
class Line:
    """A request.

    Attributes:
        custom_id: the name that its author gave it, not empty.
        url: of the endpoint it is for; nobody has looked at it yet.
        body: what the endpoint would be sent; nobody has looked at it yet.
    """

    number: int
    custom_id: str
    url: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LineError:
    """A line that is no request.

    Attributes:
        custom_id: if it has a good one.
        code: stable, such as "invalid_json".
    """

    number: int
    custom_id: str | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line as it is in the file.

    Attributes:
        number: from 1.
        end: of the first byte after it.
        data: its bytes with the line end; None where there are more than may be.
    """

    number: int
    offset: int
    end: int
    data: bytes | None


def raw_lines(file: BinaryIO, *, number: int, offset: int, end: int, size: int, longest: int) -> Iterator[RawLine]:
    """Lines from `offset` on that begin before `end`, in memory one at a time.

    Args:
        file: the input; read in one pass by this alone.
        number: of the line that begins at `offset`.
        offset: where to begin, bytes.
        end: where no line of interest begins any more.
        size: bytes that count; whatever has been appended since is not read.
        longest: bytes that a line may have, without its end.
    """
    file.seek(offset)
    while offset < min(end, size):
        data = file.readline(min(longest + 1, size - offset))
        length = len(data)
        if not length:
            return  # the file is shorter than it was
        too_long = length > longest and not data.endswith(b"\n")
        if too_long:
            length += _pass_over(file, size - offset - length)
        yield RawLine(number, offset, offset + length, None if too_long else data)
        number += 1
        offset += length


def parse(raw: RawLine) -> Line | LineError | None:
    """The request in a line, or what is wrong with it; None for a blank line."""
    if raw.data is None:
        return LineError(raw.number, None, "line_too_long", "the line is longer than a request may be")
    data = raw.data.removeprefix(codecs.BOM_UTF8) if raw.offset == 0 else raw.data
    if not data.strip():
        return None
    try:
        value, text = decode_json(data)
    except UnicodeDecodeError:
        return _not_json(raw.number, "the line is not UTF-8")
    except RecursionError:
        return _too_deep(raw.number, data)
    except msgspec.DecodeError as error:
        return _not_json(raw.number, f"the line is not JSON: {error}")
    try:
        check_json(value, text)
    except InvalidRequestError as error:
        return _out_of_bounds(raw.number, value, error)
    if isinstance(text, str):
        return _not_json(raw.number, "the line is not JSON")
    return _request(raw.number, value)


def _out_of_bounds(number: int, value: Any, error: InvalidRequestError) -> LineError:
    """The error of a line with a value that no request may have; of the line's request, if it is one."""
    line = value if isinstance(value, dict) else {}
    custom_id, body = line.get(_CUSTOM_ID), line.get("body")
    try:
        is_request = isinstance(custom_id, str) and custom_id.encode() != b"" and isinstance(body, dict)
    except UnicodeEncodeError:
        is_request = False
    return LineError(number, custom_id, INVALID_REQUEST, error.message) if is_request else _not_json(number, error.message)


def _too_deep(number: int, data: bytes) -> LineError:
    """The error of a line that no parser reads; of its request, if the name of that comes first, as in most files."""
    found = _FIRST_NAME.match(data)
    what = "the line is nested too deeply"
    if found is None:
        return _not_json(number, what)
    try:
        return LineError(number, msgspec.json.decode(found[1], type=str), INVALID_REQUEST, what)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _not_json(number, what)


def _not_json(number: int, what: str) -> LineError:
    return LineError(number, None, "invalid_json", what)


def _request(number: int, value: Any) -> Line | LineError:
    if not isinstance(value, dict):
        return _not_json(number, "the line must hold a JSON object")
    custom_id = value.get(_CUSTOM_ID)
    if not isinstance(custom_id, str) or not custom_id:
        what = "is missing" if _CUSTOM_ID not in value else f"must be a string that is not empty, got {_shown(custom_id)}"
        return LineError(number, None, "invalid_custom_id", f"custom_id {what}")
    if value.get("method") != _METHOD:
        return LineError(number, custom_id, "invalid_method", f"method must be {_METHOD!r}, got {_shown(value.get('method'))}")
    url, body = value.get("url"), value.get("body")
    if not isinstance(url, str):
        return LineError(number, custom_id, "invalid_url", f"url must be a string, got {_shown(url)}")
    if not isinstance(body, dict):
        what = "is missing" if "body" not in value else f"must be an object, got {_shown(body)}"
        return LineError(number, custom_id, "invalid_body", f"body {what}")
    return Line(number, custom_id, url, body)


def _pass_over(file: BinaryIO, left: int) -> int:
    """Bytes to the end of a line, its end included, which are read and forgotten."""
    passed = 0
    while passed < left:
        piece = file.readline(min(_PIECE, left - passed))
        passed += len(piece)
        if not piece or piece.endswith(b"\n"):
            break
    return passed


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."
