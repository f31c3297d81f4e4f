"""Files of the state directory: written aside, synced and renamed, so that what has a name is whole."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from jaxserve.errors import ConfigError, StorageFullError

_PART = ".part"  # of a file that is being written
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700  # they hold prompts


class Disk:
    """The folders of a state directory. Safe for several threads and processes.

    Whoever writes a file holds a lock on it until the file is known to the database; the lock goes with its process, so that a
    file that is neither known nor locked belongs to nobody.

    Args:
        root: the state directory; made if it is not there. Raises ConfigError if that fails.
    """

    def __init__(self, root: Path) -> None:
        self._files, self._work = root / "files", root / "work"
        self.database = root / "state.db"
        try:
            for folder in (root, self._files, self._work):
                folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"state_dir: cannot use {root}: {error.strerror}", param="state_dir") from error
        if not os.access(self._files, os.W_OK | os.X_OK):
            raise ConfigError(f"state_dir: {root} cannot be written to", param="state_dir")

    def path(self, file_id: str) -> Path:
        return self._files / file_id

    def work_folder(self, batch_id: str) -> Path:
        folder = self._work / batch_id
        folder.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)
        return folder

    def write(self, file_id: str) -> NewFile:
        """Begin to write the content of a file. Raises StorageFullError."""
        return NewFile(self.path(file_id))

    def link(self, source: Path, file_id: str) -> int:
        """Give the content of `source` to a file as well, durably. Returns its size in bytes. Raises StorageFullError."""
        with _told_of_full_disk(), source.open("rb") as content:
            os.fsync(content.fileno())
            os.link(source, self.path(file_id))
            _sync_folder(self._files)
            return os.fstat(content.fileno()).st_size

    def is_written(self, file_id: str) -> bool:
        path = self.path(file_id)
        return any(_is_locked(one) for one in (path.with_name(path.name + _PART), path))

    def remove(self, file_id: str) -> None:
        self.path(file_id).unlink(missing_ok=True)

    def remove_orphans(self, file_is_known: Callable[[str], bool], batch_runs: Callable[[str], bool]) -> int:
        """Remove files and work folders that belong to nothing. Returns how many."""
        removed = 0
        for path in self._files.iterdir():
            if not file_is_known(path.name):
                removed += _remove_unlocked(path, file_is_known)
        for folder in self._work.iterdir():
            if not batch_runs(folder.name):
                shutil.rmtree(folder, ignore_errors=True)
                removed += 1
        return removed


class NewFile:
    """A file that is being written. `close` must be called, and removes it unless it was kept. `size` is in bytes, so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(path.name + _PART)
        self._kept = False
        with _told_of_full_disk():
            self._file = _locked_file(self._part)
        self.size = 0

    def write(self, data: bytes) -> None:
        """Append. Raises StorageFullError."""
        rest = memoryview(data)
        with _told_of_full_disk():
            while rest:
                rest = rest[self._file.write(rest) :]  # the last bytes of a disk are written before it is full
        self.size += len(data)

    def publish(self) -> None:
        """Make it durable under its name; still nobody's until it is kept. Raises StorageFullError."""
        with _told_of_full_disk():
            os.fsync(self._file.fileno())
            self._part.rename(self._path)
            _sync_folder(self._path.parent)

    def keep(self) -> None:
        """It belongs to the database now."""
        self._kept = True

    def close(self) -> None:
        if not self._kept:
            self._part.unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)
        self._file.close()


def _locked_file(path: Path) -> FileIO:
    """A new file, locked. Somebody who looks for orphans may take it away before it is locked: then once more."""
    while True:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink > 0:
            return FileIO(descriptor, "wb")
        os.close(descriptor)


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def _remove_unlocked(path: Path, file_is_known: Callable[[str], bool]) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if file_is_known(path.name):  # since the lock was free
            return False
        path.unlink(missing_ok=True)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _told_of_full_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise StorageFullError("the server's disk has no room for it") from error
