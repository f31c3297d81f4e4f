"""Regular expressions from files, compiled and matched within limits.

Adapters and checkpoints come from strangers, and an expression of ten characters can take exponential time. The syntax is that
of `re`, as PEFT and compressed-tensors match it; `regex` does the matching: it can stop after a time and releases the GIL.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import regex

from jaxserve.errors import CheckpointError

SECONDS = 1.0  # of CPU time, for all expressions of one file: to compile and to match them
MAX_CHARS = 1_000
MAX_EXPANDED = 50_000  # characters times the product of all counts in braces: `regex` writes repeated parts out

_COUNTS = re.compile(r"\{(\d*)(?:,(\d*))?\}")
# Where `regex` gives meaning to what `re` takes literally: braces that hold no count (fuzzy matching), classes of POSIX.
_BRACE = re.compile(r"(\\.)|\{(?!(?:\d+(?:,\d*)?|,\d*)\})", re.DOTALL)
_POSIX = "[:"


class TimeBudget:
    """CPU seconds for the regular expressions of one file.

    Args:
        where: file, for errors.
    """

    def __init__(self, where: str, seconds: float | None = None) -> None:
        self.where = where
        self._seconds = SECONDS if seconds is None else seconds
        self._left = self._seconds

    @contextmanager
    def spend(self, field: str, text: str) -> Iterator[float]:
        """Yields the seconds that work on an expression may take. Raises CheckpointError when none are left."""
        started = time.thread_time()
        try:
            if self._left <= 0:
                raise TimeoutError
            yield self._left
        except TimeoutError as error:
            self._left = 0.0  # the limit holds for the whole file: nothing else is tried
            raise CheckpointError(
                f"{self.where}: {field}: the regular expression {text[:100]!r} takes too long: all those of a file may take "
                f"{self._seconds:g} s. Write it without nested repetition, or name modules in full."
            ) from error
        finally:
            self._left -= time.thread_time() - started


@dataclass(frozen=True, slots=True)
class FilePattern:
    """A regular expression of a file.

    Attributes:
        field: that it is in, for errors.
        text: as the file has it.
    """

    field: str
    text: str
    expression: regex.Pattern[str]
    budget: TimeBudget

    def match(self, name: str) -> bool:
        """Whether the beginning of a name matches, as `re.match` has it. Raises CheckpointError when the file's time is over."""
        with self.budget.spend(self.field, self.text) as seconds:
            return self.expression.match(name, timeout=seconds, concurrent=True) is not None


def compile_pattern(field: str, text: str, budget: TimeBudget, template: str = "{}") -> FilePattern:
    """Compile an expression.

    Args:
        template: expression around it, "{}" for its place.

    Raises CheckpointError for one that is none or exceeds a limit.
    """
    where = f"{budget.where}: {field}: {text[:100]!r}"
    if len(text) > MAX_CHARS:
        raise CheckpointError(f"{where}... has {len(text)} characters, but a regular expression may have {MAX_CHARS}")
    if _POSIX in text:
        raise CheckpointError(f"{where} has {_POSIX!r}: classes of POSIX are not supported in regular expressions")
    counts = [max(int(count) for count in found if count) for found in _COUNTS.findall(text) if any(found)]
    expanded = len(text) * math.prod(max(count, 1) for count in counts)
    if expanded > MAX_EXPANDED:
        raise CheckpointError(f"{where} expands to {expanded} characters by its counts, but at most {MAX_EXPANDED} are taken")
    whole = template.replace("{}", text)
    try:
        with budget.spend(field, text):
            re.compile(whole)  # decides what is an expression: `regex` takes more
            expression = regex.compile(_BRACE.sub(lambda found: found[1] or r"\{", whole))
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise CheckpointError(f"{where} is no regular expression: {error}") from error
    return FilePattern(field, text, expression, budget)
