"""The journal of a job: which lines are done, which names were seen, and how much of the output counts.

SQLite in a file beside the output. A transaction is committed when the lines that it speaks of are on the disk, never before: so
after any end, a power cut too, the output's first so many bytes and the journal tell the same story.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from jaxserve.errors import ConfigError
from jaxserve.jobs.summary import Counts

_FORMAT = 1
_APPLICATION = 0x6A73_6A62  # "jsjb": tells our files from other databases
_TABLES = """
CREATE TABLE job (
    only INTEGER PRIMARY KEY CHECK (only = 1), identity TEXT NOT NULL, line INTEGER NOT NULL, offset INTEGER NOT NULL,
    output_bytes INTEGER NOT NULL, error_bytes INTEGER NOT NULL, counts TEXT NOT NULL, runs INTEGER NOT NULL,
    complete INTEGER NOT NULL
);
CREATE TABLE done (line INTEGER PRIMARY KEY);
CREATE TABLE ids (name BLOB PRIMARY KEY, line INTEGER NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """What must be the same for a job to go on.

    Attributes:
        input_sha256, input_bytes: of the whole input.
        shard: which part of it, as i/n.
        model: its name.
        fingerprint: tells its numbers from another model's of that name.
    """

    input_sha256: str
    input_bytes: int
    shard: str
    model: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class State:
    """How far a job is.

    Attributes:
        line, offset: every line before this one is done; the byte it begins at.
        output_bytes, error_bytes: of the files, that count.
        counts: of all runs.
        runs: how often it was begun or resumed.
        complete: whether nothing is left to do.
    """

    line: int
    offset: int
    output_bytes: int = 0
    error_bytes: int = 0
    counts: Counts = field(default_factory=Counts)
    runs: int = 0
    complete: bool = False


class Journal:
    """A job's journal, held by one process. May be used in any thread, by one at a time.

    Args:
        path: of the file; made if it is missing.

    Raises ConfigError if another process has the job, or the file is no journal or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._database = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise ConfigError(f"cannot write {path}: {error}") from error
        try:
            self._take()
        except sqlite3.Error as error:
            self._database.close()
            raise self._refusal(error) from error
        except BaseException:
            self._database.close()
            raise

    def identity(self) -> Identity | None:
        """Of the job it is for; None for a new one. Raises ConfigError if it cannot be read."""
        try:
            row = self._database.execute("SELECT identity FROM job").fetchone()
            return None if row is None else Identity(**json.loads(row[0]))
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise self._broken() from error

    def begin(self, identity: Identity, line: int, offset: int) -> None:
        """Make it the journal of a new job whose first line is `line`, at `offset`. Raises sqlite3.Error."""
        row = (json.dumps(asdict(identity)), line, offset, json.dumps(Counts().as_dict()))
        self._database.execute("INSERT INTO job VALUES (1, ?, ?, ?, 0, 0, ?, 0, 0)", row)
        self._database.execute("COMMIT")
        self._database.execute("BEGIN")

    def state(self) -> State:
        """What was committed last. Raises ConfigError if it cannot be read."""
        columns = "line, offset, output_bytes, error_bytes, counts, runs, complete"
        try:
            line, offset, output, errors, counts, runs, complete = self._database.execute(f"SELECT {columns} FROM job").fetchone()
            return State(line, offset, output, errors, Counts.from_dict(json.loads(counts)), runs, bool(complete))
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            raise self._broken() from error

    def last_done(self) -> int:
        """The last line that is done, 0 if there is none."""
        found: int = self._database.execute("SELECT COALESCE(MAX(line), 0) FROM done").fetchone()[0]
        return found

    def is_done(self, line: int) -> bool:
        return self._database.execute("SELECT 1 FROM done WHERE line = ?", (line,)).fetchone() is not None

    def first_line_of(self, custom_id: str, line: int) -> int:
        """The first line that has a name; this one from now on, if none had. Raises sqlite3.Error."""
        name = hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
        if self._database.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (name, line)).rowcount:
            return line
        first: int = self._database.execute("SELECT line FROM ids WHERE name = ?", (name,)).fetchone()[0]
        return first

    def commit(self, state: State, lines: Iterable[int]) -> None:
        """Lines are done, and with all that was before them it came to this. Durable when it returns.

        Raises sqlite3.Error, after which only what was committed earlier is true.
        """
        execute = self._database.execute
        self._database.executemany("INSERT OR IGNORE INTO done VALUES (?)", ((line,) for line in lines if line >= state.line))
        execute("DELETE FROM done WHERE line < ?", (state.line,))
        execute(
            "UPDATE job SET line = ?, offset = ?, output_bytes = ?, error_bytes = ?, counts = ?, runs = ?, complete = ?",
            (
                state.line,
                state.offset,
                state.output_bytes,
                state.error_bytes,
                json.dumps(state.counts.as_dict()),
                state.runs,
                state.complete,
            ),
        )
        execute("COMMIT")
        execute("BEGIN")

    def close(self) -> None:
        """Forget what was not committed, and let others have the job."""
        self._database.close()

    def _take(self) -> None:
        execute = self._database.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA journal_mode = TRUNCATE")  # not WAL: outputs lie on network file systems too
        execute("PRAGMA synchronous = FULL")
        execute("BEGIN EXCLUSIVE")
        application, version = execute("PRAGMA application_id").fetchone()[0], execute("PRAGMA user_version").fetchone()[0]
        tables = execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        if (application, version, tables) == (0, 0, 0):
            for statement in _TABLES.split(";")[:-1]:
                execute(statement)
            execute(f"PRAGMA application_id = {_APPLICATION}")
            execute(f"PRAGMA user_version = {_FORMAT}")
        elif application != _APPLICATION:
            raise self._broken()
        elif version != _FORMAT:
            raise ConfigError(f"the journal {self._path} was written by another version of jaxserve (format {version})")

    def _refusal(self, error: sqlite3.Error) -> ConfigError:
        code = getattr(error, "sqlite_errorcode", None)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return ConfigError(f"another process works on this job: it has {self._path}")
        if isinstance(error, sqlite3.OperationalError):
            return ConfigError(f"cannot write {self._path}: {error}")
        return self._broken()

    def _broken(self) -> ConfigError:
        return ConfigError(
            f"{self._path} is broken, or no journal of a job: begin anew without the job's files, or give another -o"
        )
