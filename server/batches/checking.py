"""Whether an input file is one: what is wrong with any line of it fails the batch before a request runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from jaxserve.jobs.lines import INVALID_REQUEST, Line, LineError, RawLine, parse, raw_lines
from server.batches.records import Problem

MOST_PROBLEMS = 100  # that a batch tells; what follows is not looked at
_DIGEST_BYTES = 16

# What a line's error is called where clients expect OpenAI's word for it, and the field at fault.
_CODES: Mapping[str, str] = MappingProxyType({"invalid_json": "invalid_json_line"})
_FIELDS: Mapping[str, str] = MappingProxyType(
    {"invalid_custom_id": "custom_id", "invalid_method": "method", "invalid_url": "url", "invalid_body": "body"}
)


@dataclass(frozen=True, slots=True)
class InputRules:
    """What an input file must keep to."""

    endpoint: str
    max_lines: int
    max_line_bytes: int


@dataclass(frozen=True, slots=True)
class Checked:
    """What an input file is.

    Attributes:
        requests: in it, if it is good.
        problems: else what is wrong with it, the first MOST_PROBLEMS.
    """

    requests: int
    problems: tuple[Problem, ...]


def check_input(path: Path, rules: InputRules, halted: Callable[[], bool]) -> Checked | None:
    """Read a file from its start to its end; None if it was `halted`. Raises OSError."""
    with path.open("rb") as file:
        size = path.stat().st_size
        raws = raw_lines(file, number=1, offset=0, end=size, size=size, longest=rules.max_line_bytes)
        return _check(raws, rules, halted)


def _check(raws: Iterator[RawLine], rules: InputRules, halted: Callable[[], bool]) -> Checked | None:
    problems: list[Problem] = []
    names: set[bytes] = set()  # digests: names may be long
    requests = 0
    for raw in raws:
        if halted():
            return None
        line = parse(raw)
        if line is None:
            continue
        requests += 1
        if requests > rules.max_lines:
            message = f"the file holds more than {rules.max_lines} requests (max_batch_lines)"
            problems.append(Problem("too_many_requests", message))
            break
        problem = _problem(line, rules.endpoint)
        if problem is None and isinstance(line, Line):
            name = hashlib.blake2b(line.custom_id.encode(), digest_size=_DIGEST_BYTES).digest()
            if name in names:
                message = f"custom_id {line.custom_id!r} is that of an earlier line"
                problem = Problem("duplicate_custom_id", message, line.number, "custom_id")
            names.add(name)
        if problem is not None:
            problems.append(problem)
            if len(problems) == MOST_PROBLEMS:
                break
    if not requests:
        problems.append(Problem("empty_file", "the file holds no requests"))
    return Checked(requests, tuple(problems))


def _problem(line: Line | LineError, endpoint: str) -> Problem | None:
    if isinstance(line, LineError):
        if line.code == INVALID_REQUEST:
            return None  # it fails alone, when the batch runs
        return Problem(_CODES.get(line.code, line.code), line.message, line.number, _FIELDS.get(line.code))
    if line.url != endpoint:
        message = f"url must be {endpoint}, the endpoint of the batch, got {line.url!r}"
        return Problem("invalid_url", message, line.number, "url")
    return None
