"""A job's files together: requests come out of them, and what became of lines goes in, durably. Blocks; knows no event loop."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxserve.errors import ConfigError
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.files import JobFiles
from jaxserve.jobs.in_flight import InFlight
from jaxserve.jobs.journal import Identity, Journal, State
from jaxserve.jobs.reader import Read, Reader, Unchanged
from jaxserve.jobs.results import Settled
from jaxserve.jobs.scan import OnScan, Scan, Shard, first_offset, scan
from jaxserve.jobs.writer import Appender, StorageError


@dataclass(frozen=True, slots=True)
class JobModel:
    """Who answers: a job that was begun with one model does not go on with another.

    Attributes:
        name: for people.
        fingerprint: the same for the same answers: of weights, and of whatever else the caller wants to stay the same.
    """

    name: str
    fingerprint: str


class Storage:
    """What a job has on disk, held by this process alone. May be used in any thread, by one at a time.

    Attributes:
        lines: of the shard, blank ones among them.
        state: what was committed last.
        in_flight: lines that are being answered.
    """

    def __init__(self, files: JobFiles, model: JobModel, shard: Shard, config: JobConfig, on_scan: OnScan) -> None:
        """Begin a job, or go on with it: everything after the last commit is cut off.

        Raises ConfigError where this is another job than the one that the files are of, or a file cannot be used.
        """
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(files.open_input())
            files.check()
            self._journal = opened.enter_context(contextlib.closing(Journal(files.journal)))
            before = self._journal.identity()
            self.state = State(1, 0) if before is None else self._journal.state()
            self._output = opened.enter_context(contextlib.closing(Appender(files.output, self.state.output_bytes)))
            self._errors = opened.enter_context(contextlib.closing(Appender(files.errors, self.state.error_bytes)))
            self._input = Unchanged(file)
            found = scan(file, shard, on_scan)
            self.identity, self.lines = _identity(found, shard, model), found.lines
            begin, end = shard.span(found.size)
            with self._failing("begin the job"):
                if before is None:
                    self.state = State(found.first, first_offset(file, begin, found.size))
                    self._journal.begin(self.identity, self.state.line, self.state.offset)
                else:
                    _check_same(before, self.identity, files)
                at = self.state
                self.in_flight = opened.enter_context(contextlib.closing(InFlight(files.running)))
                self._reader = Reader(file, self._journal, config, line=at.line, offset=at.offset, end=end, size=found.size)
            self._closing = opened.pop_all()

    def read(self) -> Read:
        """The next lines. Raises StorageError."""
        with self._failing("read the job's input"):
            self._input.check()
            return self._reader.read()

    def commit(self, settled: Sequence[Settled], state: State) -> None:
        """Write lines, and make them and the state durable. Lengths of files are taken from them, not from the state.

        Raises StorageError, after which nothing can be committed any more: the files are as the last commit left them.
        """
        try:
            with self._failing("write the job's files"):
                self._write(settled, state)
        except StorageError:
            self._undo()
            raise

    def close(self) -> None:
        """Forget what was not committed, and let others have the job."""
        self._closing.close()

    def _write(self, settled: Sequence[Settled], state: State) -> None:
        for file, is_error in ((self._output, False), (self._errors, True)):
            file.append(b"".join(one.data for one in settled if one.is_error == is_error))
        state = replace(state, output_bytes=self._output.sync(), error_bytes=self._errors.sync())
        self._journal.commit(state, [one.number for one in settled])  # not before the lines are on the disk
        self._output.commit(state.output_bytes)
        self._errors.commit(state.error_bytes)
        self.state = state

    def _undo(self) -> None:
        """Leave whole lines behind for whoever reads the files now; the next start would do it as well."""
        self._journal.close()
        for file in (self._output, self._errors):
            with contextlib.suppress(OSError):
                file.cut()

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """What disks and databases say, as one error."""
        try:
            yield
        except OSError as error:
            raise StorageError(f"cannot {what}: {error.strerror or error}") from error
        except sqlite3.Error as error:
            raise StorageError(f"cannot {what}: {error}") from error


def _identity(found: Scan, shard: Shard, model: JobModel) -> Identity:
    return Identity(found.sha256, found.size, str(shard), model.name, model.fingerprint)


def _check_same(before: Identity, now: Identity, files: JobFiles) -> None:
    """Raise ConfigError for another job."""
    if (before.input_sha256, before.input_bytes) != (now.input_sha256, now.input_bytes):
        was, found = (f"sha256 {one.input_sha256[:16]}..., {one.input_bytes} bytes" for one in (before, now))
        param, what = "input", f"{files.input} is not the file that the job was begun with: its hash differs ({found}; was {was})"
    elif before.shard != now.shard:
        param, what = "shards", f"the job was begun as shard {before.shard}, not {now.shard}"
    elif before.model != now.model:
        param, what = "model", f"the job was begun with the model {before.model}, not {now.model}"
    elif before.fingerprint != now.fingerprint:
        param, what = "model", f"the job was begun with another model named {now.model}, or with other settings of it"
    else:
        return
    raise ConfigError(f"{files.output} cannot be resumed: {what}; undo that, or give another output", param=param)
