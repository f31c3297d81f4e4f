"""Reads a job's input piece by piece: passes over what is done, tells apart what is no request, and orders the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.journal import Journal
from jaxserve.jobs.lines import Line, LineError, RawLine, parse, raw_lines
from jaxserve.jobs.order import ORDERS, Waiting
from jaxserve.jobs.writer import StorageError

_MIB = 2**20


@dataclass(slots=True)
class Read:
    """Lines that were read.

    Attributes:
        line, offset: the next line.
        offsets: of the lines that are not done, by number; in the order of the file.
        waiting: requests among them, in the order in which they should be asked.
        errors: those that are no requests.
        blanks: numbers of those with nothing in them.
        exhausted: whether there is no next line.
    """

    line: int
    offset: int
    offsets: dict[int, int] = field(default_factory=dict)
    waiting: list[Waiting] = field(default_factory=list)
    errors: list[LineError] = field(default_factory=list)
    blanks: list[int] = field(default_factory=list)
    exhausted: bool = False


class Reader:
    """The lines of a shard that are not done.

    Args:
        file: the input; nobody else reads it.
        journal: knows what is done, and which names were seen.
        line, offset: the first line that may not be done.
        end: where the shard ends, bytes.
    """

    def __init__(
        self, file: BinaryIO, journal: Journal, config: JobConfig, *, line: int, offset: int, end: int, size: int
    ) -> None:
        self._file = file
        self._journal = journal
        self._config = config
        self._line, self._offset = line, offset
        self._last_done = journal.last_done()
        longest = config.max_line_mib * _MIB
        self._raw: Iterator[RawLine] = raw_lines(file, number=line, offset=offset, end=end, size=size, longest=longest)

    def read(self) -> Read:
        """The next lines, as many as may be held at once. Raises StorageError, OSError and sqlite3.Error."""
        read = Read(self._line, self._offset)
        held = 0
        while len(read.offsets) < self._config.window and held < self._config.window_mib * _MIB:
            raw = next(self._raw, None)
            if raw is None:
                read.exhausted = True
                break
            read.line, read.offset = raw.number + 1, raw.end
            if raw.number > self._last_done or not self._journal.is_done(raw.number):
                held += raw.end - raw.offset
                self._take(raw, read)
        self._line, self._offset = read.line, read.offset
        read.waiting = ORDERS[self._config.order](read.waiting)
        return read

    def _take(self, raw: RawLine, read: Read) -> None:
        read.offsets[raw.number] = raw.offset
        found = parse(raw)
        if found is None:
            read.blanks.append(raw.number)
            return
        if found.custom_id is not None:
            first = self._journal.first_line_of(found.custom_id, raw.number)
            if first != raw.number:
                message = f"custom_id {found.custom_id!r} is that of line {first}"
                found = LineError(raw.number, found.custom_id, "duplicate_custom_id", message)
        if isinstance(found, Line):
            read.waiting.append(Waiting.of(found, raw.end - raw.offset))
        else:
            read.errors.append(found)


class Unchanged:
    """Sees whether a file is written to."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._seen = self._look()

    def check(self) -> None:
        """Raise StorageError if it has been written to."""
        if self._look() != self._seen:
            raise StorageError("the input was changed while the job read it")

    def _look(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns
