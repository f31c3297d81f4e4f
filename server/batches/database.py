"""The database of a state directory: SQLite, shared by the processes of a server."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxserve.errors import ConfigError, OverloadedError, StorageFullError
from server.batches.records import FINAL, BatchStatus

BUSY_SECONDS = 10.0
# As the index has it, or it would not be used.
UNFINISHED = f"status IN ({', '.join(repr(status.value) for status in BatchStatus if status not in FINAL)})"

_FIRST = (
    """
    CREATE TABLE files (
        id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        purpose TEXT NOT NULL,
        filename TEXT NOT NULL,
        bytes INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL
    ) WITHOUT ROWID
    """,
    "CREATE INDEX files_of_owner ON files (owner, id)",
    "CREATE INDEX files_by_expiry ON files (expires_at)",
    """
    CREATE TABLE batches (
        id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        endpoint TEXT NOT NULL,
        input_file_id TEXT NOT NULL,
        model TEXT NOT NULL,
        metadata TEXT,
        output_lifetime INTEGER,
        key_id TEXT NOT NULL,
        status TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL,
        in_progress_at INTEGER,
        finalizing_at INTEGER,
        completed_at INTEGER,
        failed_at INTEGER,
        expired_at INTEGER,
        cancelling_at INTEGER,
        cancelled_at INTEGER,
        total INTEGER NOT NULL DEFAULT 0,
        completed INTEGER NOT NULL DEFAULT 0,
        failed INTEGER NOT NULL DEFAULT 0,
        input_tokens INTEGER NOT NULL DEFAULT 0,
        cached_tokens INTEGER NOT NULL DEFAULT 0,
        output_tokens INTEGER NOT NULL DEFAULT 0,
        problems TEXT NOT NULL DEFAULT '[]',
        output_file_id TEXT,
        error_file_id TEXT
    ) WITHOUT ROWID
    """,
    "CREATE INDEX batches_of_owner ON batches (owner, id)",
    "CREATE INDEX batches_by_status ON batches (status, id)",
    f"CREATE INDEX unfinished_batches ON batches (owner, input_file_id) WHERE {UNFINISHED}",
)
_SECOND = (
    "CREATE TABLE uploads (id TEXT PRIMARY KEY, owner TEXT NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX uploads_of_owner ON uploads (owner)",
)
_VERSIONS = (_FIRST, _SECOND)  # what leads to each from the one before


class Database:
    """One connection, for any thread of this process.

    Args:
        path: the file; made if it is not there. Raises ConfigError for one that is no database of this version.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        try:
            self._prepare(path)
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise ConfigError(f"state_dir: cannot use {path}: {error}", param="state_dir") from error
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One state of the database, for as many queries as it takes. Raises OverloadedError if it stays locked."""
        with self._transaction("DEFERRED") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, durable once it is over, and undone by an exception.

        Raises OverloadedError if others hold the database for long, and StorageFullError.
        """
        with self._transaction("IMMEDIATE") as connection:
            yield connection

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        with self._lock, _in_our_words():
            connection.execute(f"BEGIN {kind}")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # some errors end it by themselves
                    connection.execute("ROLLBACK")
                raise

    def _prepare(self, path: Path) -> None:
        connection = self._connection
        # Switching takes the file for itself and does not wait for its turn; once switched it stays so.
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        with self.writing():
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > len(_VERSIONS):
                raise ConfigError(f"state_dir: {path} is of version {version}, not {len(_VERSIONS)}", param="state_dir")
            for statements in _VERSIONS[version:]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(_VERSIONS)}")


@contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        code = error.sqlite_errorcode & 0xFF  # what is above tells details
        if code == sqlite3.SQLITE_FULL:
            raise StorageFullError("the server's disk has no room for it") from error
        if code == sqlite3.SQLITE_BUSY:
            raise OverloadedError(f"the server's state was locked for {BUSY_SECONDS:g} s") from error
        raise
