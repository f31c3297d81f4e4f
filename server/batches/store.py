"""Files and batches of a server, kept through its end: rows in a database, content in files.

Shared by front ends and the worker, each with a Store of its own. Every method is atomic, durable when it returns, and blocks for
a disk's time: coroutines call it through asyncio.to_thread.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from jaxserve.config.server import ServerConfig
from jaxserve.errors import ConflictError, InvalidRequestError, NotFoundError, QuotaError
from server.batches import rows
from server.batches.arriving import Arriving
from server.batches.database import UNFINISHED, Database
from server.batches.disk import Disk, NewFile
from server.batches.records import (
    WINDOW_SECONDS,
    Batch,
    BatchStatus,
    Counts,
    NewBatch,
    Problem,
    Purpose,
    Results,
    Spent,
    StoredFile,
    before,
)

_MIB = 2**20
_DAY = 86400


@dataclass(frozen=True, slots=True)
class Quotas:
    """What one tenant may have.

    Attributes:
        stored_bytes: of its files together.
        unfinished_batches: at the same time.
        lifetime: seconds after which a file expires where nothing else is said.
    """

    stored_bytes: int
    unfinished_batches: int
    lifetime: int

    @classmethod
    def of(cls, config: ServerConfig) -> Quotas:
        return cls(config.max_tenant_mib * _MIB, config.max_tenant_batches, int(config.file_days * _DAY))


class Store:
    """The state directory of a server. Raises ConfigError if it cannot be used.

    Args:
        root: the directory; made if it is not there.
        now: Unix time in seconds.
    """

    def __init__(self, root: str | Path, quotas: Quotas, now: Callable[[], float] = time.time) -> None:
        self._disk = Disk(Path(root))
        self._database = Database(self._disk.database)
        self._quotas = quotas
        self._arriving = Arriving(quotas.stored_bytes, self._disk.is_written)
        self._now = now

    @classmethod
    def of(cls, config: ServerConfig) -> Store | None:
        """The store that the configuration asks for, None if it asks for none. Raises ConfigError."""
        return None if config.state_dir is None else cls(config.state_dir, Quotas.of(config))

    def close(self) -> None:
        self._database.close()

    # Files.

    def upload(self, owner: str, announced: int = 0) -> Upload:
        """Begin to store a file; see Upload. `announced` bytes are known to come.

        Raises QuotaError for more than the owner may have, and StorageFullError.
        """
        file_id = self._new_id("file-")
        upload = Upload(self, self._disk.write(file_id), file_id, owner)
        try:
            upload.expect(announced)
        except BaseException:
            upload.close()
            raise
        return upload

    def file(self, owner: str, file_id: str) -> StoredFile:
        """One of the owner's files. Raises NotFoundError."""
        with self._database.reading() as connection:
            return self._file(connection, owner, file_id)

    def files(
        self, owner: str, *, after: str = "", limit: int, newest_first: bool = True, purpose: str | None = None
    ) -> tuple[Sequence[StoredFile], bool]:
        """The owner's files that come after an id, `limit` of them at most, and whether there are more."""
        condition, more = "expires_at > ? AND (? IS NULL OR purpose = ?)", (self._now(), purpose, purpose)
        found, has_more = self._page("files", owner, after, limit, newest_first, condition, more)
        return [rows.file_of(row) for row in found], has_more

    def open_file(self, owner: str, file_id: str) -> tuple[StoredFile, BinaryIO]:
        """One of the owner's files and its content, which stays readable when the file is deleted. Raises NotFoundError."""
        record = self.file(owner, file_id)
        try:
            return record, self._disk.path(file_id).open("rb")
        except FileNotFoundError as error:  # deleted since
            raise _no_file(file_id) from error

    def delete_file(self, owner: str, file_id: str) -> None:
        """Forget a file. Raises NotFoundError, and ConflictError while an unfinished batch reads it."""
        with self._database.writing() as connection:
            self._file(connection, owner, file_id)
            reader = connection.execute(
                f"SELECT id FROM batches WHERE owner = ? AND input_file_id = ? AND {UNFINISHED}",
                (owner, file_id),
            ).fetchone()
            if reader is not None:
                raise ConflictError(f"the file {file_id!r} is read by the batch {reader['id']!r}, which has not ended")
            connection.execute("DELETE FROM files WHERE id = ?", (file_id,))
        self._disk.remove(file_id)

    # Batches, as clients see them.

    def create_batch(self, owner: str, wanted: NewBatch) -> Batch:
        """A new batch, to be validated.

        Raises NotFoundError for a file that is not the owner's, InvalidRequestError for one that is not meant for a batch, and
        QuotaError for a batch too many.
        """
        now = int(self._now())
        batch = Batch(
            id=self._new_id("batch_"),
            owner=owner,
            wanted=wanted,
            status=BatchStatus.VALIDATING,
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
        )
        with self._database.writing() as connection:
            if self._file(connection, owner, wanted.input_file_id, "input_file_id").purpose is not Purpose.BATCH:
                raise InvalidRequestError(f"input_file_id must be a file with the purpose {Purpose.BATCH}", param="input_file_id")
            self._check_batches(connection, owner)
            rows.insert(connection, "batches", rows.row_of_batch(batch))
        return batch

    def batch(self, owner: str, batch_id: str) -> Batch:
        """One of the owner's batches. Raises NotFoundError."""
        with self._database.reading() as connection:
            return self._batch(connection, owner, batch_id)

    def batches(self, owner: str, *, after: str = "", limit: int) -> tuple[Sequence[Batch], bool]:
        """The owner's batches that come after an id, newest first, `limit` of them at most, and whether there are more."""
        found, has_more = self._page("batches", owner, after, limit, newest_first=True)
        return [rows.batch_of(row) for row in found], has_more

    def cancel(self, owner: str, batch_id: str) -> Batch:
        """Validating or in_progress -> cancelling; once more does no harm.

        Raises NotFoundError, and ConflictError for a batch that has ended, or whose lines are all done.
        """
        with self._database.writing() as connection:
            batch = self._batch(connection, owner, batch_id)
            if batch.status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
                return batch
            moved = self._move(connection, batch_id, BatchStatus.CANCELLING)
            if moved is None:
                raise ConflictError(f"the batch {batch_id!r} cannot be cancelled: it is {batch.status}")
            return moved

    # Batches, as the worker moves them. Each move returns the batch, or None where it has moved elsewhere in the meantime.

    def unfinished(self) -> Sequence[Batch]:
        """Batches of everybody that have not ended, oldest first."""
        with self._database.reading() as connection:
            return [rows.batch_of(row) for row in connection.execute(f"SELECT * FROM batches WHERE {UNFINISHED} ORDER BY id")]

    def by_status(self) -> Mapping[BatchStatus, int]:
        with self._database.reading() as connection:
            found = dict(connection.execute("SELECT status, count(*) FROM batches GROUP BY status").fetchall())
        return {status: found.get(status.value, 0) for status in BatchStatus}

    def input_path(self, batch: Batch) -> Path:
        """The content of a batch's input file, which stays while the batch has not ended."""
        return self._disk.path(batch.wanted.input_file_id)

    def work_folder(self, batch: Batch) -> Path:
        """A folder for what the batch needs while it runs; the worker removes it, or else `remove_orphans` does."""
        return self._disk.work_folder(batch.id)

    def begin(self, batch_id: str, total: int) -> Batch | None:
        """Validating -> in_progress: the input file is good and has so many lines."""
        with self._database.writing() as connection:
            return self._move(connection, batch_id, BatchStatus.IN_PROGRESS, total=total)

    def fail(self, batch_id: str, problems: Sequence[Problem]) -> Batch | None:
        """Validating, in_progress or finalizing -> failed."""
        with self._database.writing() as connection:
            return self._move(connection, batch_id, BatchStatus.FAILED, problems=rows.encoded(problems))

    def progress(self, batch_id: str, counts: Counts, spent: Spent) -> BatchStatus:
        """Tell how far an unfinished batch is. Returns its status, which may say that it is to be cancelled."""
        with self._database.writing() as connection:
            connection.execute(
                f"UPDATE batches SET {rows.assignments(rows.numbers(counts, spent))} WHERE id = ? AND {UNFINISHED}",
                (*rows.numbers(counts, spent).values(), batch_id),
            )
            row = connection.execute("SELECT status FROM batches WHERE id = ?", (batch_id,)).fetchone()
        return BatchStatus(row["status"])

    def finalize(self, batch_id: str) -> Batch | None:
        """in_progress -> finalizing: every line has its answer."""
        with self._database.writing() as connection:
            return self._move(connection, batch_id, BatchStatus.FINALIZING)

    def complete(self, batch_id: str, results: Results) -> Batch | None:
        """Finalizing -> completed, with its output files."""
        return self._end(batch_id, BatchStatus.COMPLETED, results)

    def expire(self, batch_id: str, results: Results) -> Batch | None:
        """Validating, in_progress or finalizing -> expired, with what is done."""
        return self._end(batch_id, BatchStatus.EXPIRED, results)

    def cancelled(self, batch_id: str, results: Results) -> Batch | None:
        """Cancelling -> cancelled, with what is done."""
        return self._end(batch_id, BatchStatus.CANCELLED, results)

    # Upkeep, by the worker.

    def remove_expired(self) -> int:
        """Remove expired files that no unfinished batch reads. Returns how many."""
        with self._database.writing() as connection:
            query = (
                "SELECT id FROM files WHERE expires_at <= ? AND NOT EXISTS (SELECT 1 FROM batches WHERE "
                f"batches.owner = files.owner AND input_file_id = files.id AND {UNFINISHED})"
            )
            expired = [row["id"] for row in connection.execute(query, (self._now(),))]
            connection.executemany("DELETE FROM files WHERE id = ?", [(file_id,) for file_id in expired])
        for file_id in expired:
            self._disk.remove(file_id)
        return len(expired)

    def remove_orphans(self) -> int:
        """Remove what a killed process left: content without a file, work folders of ended batches. Returns how many.

        Uploads of front ends go on undisturbed; the worker must not end a batch at the same time.
        """
        return self._disk.remove_orphans(self._is_file, self._is_unfinished)

    # Parts.

    def keep_file(self, file_id: str, owner: str, purpose: Purpose, filename: str, size: int, lifetime: int | None) -> StoredFile:
        """Give content that is there a row: Upload's way in. Raises QuotaError."""
        record = self._record(file_id, owner, purpose, filename, size, lifetime)
        with self._database.writing() as connection:
            self._arriving.settle(connection, owner, file_id, size)
            rows.insert(connection, "files", rows.row_of_file(record))
        return record

    def reserve(self, owner: str, file_id: str, size: int) -> int:
        """Make room for an upload of at least `size` bytes. Returns how much it has. Raises QuotaError."""
        with self._database.writing() as connection:
            return self._arriving.reserve(connection, owner, file_id, size)

    def release(self, file_id: str) -> None:
        """An upload that was not kept is over: its room is free."""
        with self._database.writing() as connection:
            self._arriving.release(connection, file_id)

    def _record(self, file_id: str, owner: str, purpose: Purpose, filename: str, size: int, lifetime: int | None) -> StoredFile:
        now = int(self._now())
        return StoredFile(file_id, owner, purpose, filename, size, now, now + (lifetime or self._quotas.lifetime))

    def _end(self, batch_id: str, status: BatchStatus, results: Results) -> Batch | None:
        linked: list[str] = []
        try:
            with self._database.writing() as connection:
                row = connection.execute("SELECT * FROM batches WHERE id = ?", (batch_id,)).fetchone()
                if row is None or BatchStatus(row["status"]) not in before(status):
                    return None
                batch, changes = rows.batch_of(row), rows.numbers(results.counts, results.spent)
                for name, path in (("output", results.output), ("error", results.errors)):
                    if path is not None and path.stat().st_size:
                        file_id = self._new_id("file-")
                        linked.append(file_id)
                        self._link(connection, batch, path, file_id, f"{batch_id}_{name}.jsonl")
                        changes[f"{name}_file_id"] = file_id
                return self._move(connection, batch_id, status, **changes)
        except BaseException:
            for file_id in linked:
                self._disk.remove(file_id)
            raise

    def _link(self, connection: sqlite3.Connection, batch: Batch, path: Path, file_id: str, filename: str) -> None:
        size = self._disk.link(path, file_id)
        record = self._record(file_id, batch.owner, Purpose.BATCH_OUTPUT, filename, size, batch.wanted.output_lifetime)
        rows.insert(connection, "files", rows.row_of_file(record))

    def _move(self, connection: sqlite3.Connection, batch_id: str, status: BatchStatus, **changes: object) -> Batch | None:
        """Change the status if it may follow the one that the batch has."""
        earlier = before(status)
        values = {"status": status.value, f"{status}_at": int(self._now()), **changes}
        done = connection.execute(
            f"UPDATE batches SET {rows.assignments(values)} WHERE id = ? AND status IN ({', '.join('?' * len(earlier))})",
            (*values.values(), batch_id, *earlier),
        )
        if done.rowcount == 0:
            return None
        return rows.batch_of(connection.execute("SELECT * FROM batches WHERE id = ?", (batch_id,)).fetchone())

    def _file(self, connection: sqlite3.Connection, owner: str, file_id: str, param: str | None = None) -> StoredFile:
        row = connection.execute(
            "SELECT * FROM files WHERE id = ? AND owner = ? AND expires_at > ?",
            (file_id, owner, self._now()),
        ).fetchone()
        if row is None:
            raise _no_file(file_id, param)
        return rows.file_of(row)

    def _batch(self, connection: sqlite3.Connection, owner: str, batch_id: str) -> Batch:
        row = connection.execute("SELECT * FROM batches WHERE id = ? AND owner = ?", (batch_id, owner)).fetchone()
        if row is None:
            raise NotFoundError(f"there is no batch {batch_id!r}")
        return rows.batch_of(row)

    def _page(
        self,
        table: str,
        owner: str,
        after: str,
        limit: int,
        newest_first: bool,
        condition: str = "1",
        more: Sequence[object] = (),
    ) -> tuple[Sequence[sqlite3.Row], bool]:
        """Rows of an owner after an id, which need not be there any more: ids sort by time."""
        sign, order = ("<", "DESC") if newest_first else (">", "ASC")
        start = f"AND id {sign} ?" if after else "AND ? = ''"
        query = f"SELECT * FROM {table} WHERE owner = ? {start} AND {condition} ORDER BY id {order} LIMIT ?"
        with self._database.reading() as connection:
            found = connection.execute(query, (owner, after, *more, limit + 1)).fetchall()
        return found[:limit], len(found) > limit

    def _check_batches(self, connection: sqlite3.Connection, owner: str) -> None:
        query = f"SELECT count(*) FROM batches WHERE owner = ? AND {UNFINISHED}"
        unfinished = connection.execute(query, (owner,)).fetchone()[0]
        if unfinished >= self._quotas.unfinished_batches:
            raise QuotaError(
                f"{unfinished} batches have not ended, and a tenant may have {self._quotas.unfinished_batches} "
                "(max_tenant_batches); wait for one, or cancel one"
            )

    def _is_file(self, file_id: str) -> bool:
        with self._database.reading() as connection:
            return connection.execute("SELECT 1 FROM files WHERE id = ?", (file_id,)).fetchone() is not None

    def _is_unfinished(self, batch_id: str) -> bool:
        query = f"SELECT 1 FROM batches WHERE id = ? AND {UNFINISHED}"
        with self._database.reading() as connection:
            return connection.execute(query, (batch_id,)).fetchone() is not None

    def _new_id(self, prefix: str) -> str:
        """A name that nobody can guess and that sorts by time, in microseconds."""
        return f"{prefix}{int(self._now() * 1e6):014x}{secrets.token_hex(9)}"


class Upload:
    """A file on its way in. `close` must be called, and leaves nothing unless `keep` was.

    Its bytes count for its owner from when they are expected, and are written no sooner.
    """

    def __init__(self, store: Store, content: NewFile, file_id: str, owner: str) -> None:
        self._store = store
        self._content = content
        self._file_id = file_id
        self._owner = owner
        self._reserved = 0  # which has a row unless it is 0
        self._lock = threading.Lock()  # whoever is cancelled closes it while a thread still writes

    @property
    def reserved(self) -> int:
        return self._reserved

    def expect(self, size: int) -> None:
        """It will have `size` bytes or more. Raises QuotaError."""
        with self._lock:
            self._expect(size)

    def write(self, data: bytes) -> None:
        """Append. Raises QuotaError and StorageFullError."""
        with self._lock:
            self._expect(self._content.size + len(data))
            self._content.write(data)

    def keep(self, filename: str, purpose: Purpose = Purpose.BATCH, lifetime: int | None = None) -> StoredFile:
        """Store it, for a lifetime in seconds or the usual one. Raises QuotaError or StorageFullError."""
        with self._lock:
            self._content.publish()
            record = self._store.keep_file(self._file_id, self._owner, purpose, filename, self._content.size, lifetime)
            self._reserved = 0
            self._content.keep()
            return record

    def close(self) -> None:
        with self._lock:
            try:
                if self._reserved:
                    self._store.release(self._file_id)
                    self._reserved = 0
            finally:
                self._content.close()

    def _expect(self, size: int) -> None:
        if size > self._reserved:
            self._reserved = self._store.reserve(self._owner, self._file_id, size)


def _no_file(file_id: str, param: str | None = None) -> NotFoundError:
    return NotFoundError(f"there is no file {file_id!r}", param=param)
