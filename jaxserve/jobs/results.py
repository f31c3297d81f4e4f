"""Lines of a job's output and error file, in OpenAI's shape."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from jaxserve.jobs.answers import Answer, NoAnswer
from jaxserve.jobs.lines import Line, LineError
from jaxserve.jobs.summary import Counts

_UNKNOWN = "error"
# Characters at which Python's str.splitlines, and others, end a line; in JSON they are only found in strings.
_LINE_ENDS = tuple((character.encode(), f"\\u{ord(character):04x}".encode()) for character in "\x85\u2028\u2029")


@dataclass(frozen=True, slots=True)
class Settled:
    """A line of the input that is done.

    Attributes:
        data: what is written about it, with its end; empty for a blank line.
        is_error: whether that goes to the error file.
    """

    number: int
    data: bytes
    is_error: bool


class Results:
    """Writes lines and counts them.

    Args:
        job: what ids are made from, so that they are the same whenever a line is answered.
        counts: to which every line is added.
    """

    def __init__(self, job: str, counts: Counts) -> None:
        self._job = job
        self._counts = counts

    def answered(self, line: Line, answer: Answer | NoAnswer) -> Settled:
        if isinstance(answer, NoAnswer):
            return self.invalid(LineError(line.number, line.custom_id, answer.code, answer.message))
        response = {"status_code": answer.status, "request_id": answer.request_id, "body": answer.body}
        shown = {"id": self._id(line.number), "custom_id": line.custom_id, "response": response, "error": None}
        if answer.status == HTTPStatus.OK:
            self._counts.answered += 1
            self._counts.count_usage(answer.body)
            return Settled(line.number, _encoded(shown), is_error=False)
        self._counts.failed += 1
        self._counts.codes[_code(answer)] += 1
        return Settled(line.number, _encoded({**shown, "line": line.number}), is_error=True)

    def invalid(self, error: LineError) -> Settled:
        self._counts.invalid += 1
        self._counts.codes[error.code] += 1
        shown = {
            "id": self._id(error.number),
            "custom_id": error.custom_id,
            "response": None,
            "error": {"code": error.code, "message": error.message},
            "line": error.number,
        }
        return Settled(error.number, _encoded(shown), is_error=True)

    def blank(self, number: int) -> Settled:
        self._counts.blank += 1
        return Settled(number, b"", is_error=False)

    def _id(self, number: int) -> str:
        return "batch_req_" + hashlib.blake2b(f"{self._job}/{number}".encode(), digest_size=12).hexdigest()


def _encoded(value: Any) -> bytes:
    text = msgspec.json.encode(value)
    for character, escaped in _LINE_ENDS:
        text = text.replace(character, escaped)
    return text + b"\n"


def _code(answer: Answer) -> str:
    error = answer.body.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) else _UNKNOWN
