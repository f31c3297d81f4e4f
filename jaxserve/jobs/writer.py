"""Appending to a file so that what was committed can be told from what came after."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from jaxserve.errors import ConfigError, InternalError


class StorageError(InternalError):
    """A job's files cannot be read or written. What is committed stays, and the job can be resumed when that is mended."""


class Appender:
    """A file that only grows. Not thread-safe.

    Attributes:
        length: bytes that are committed.

    Args:
        length: bytes that are committed; what follows them is cut off.

    Raises ConfigError for a file that cannot be written, or holds less than was committed.
    """

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        self.length = length
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from error
        try:
            self._check()
            self.cut()
            os.fsync(self._file)
            sync_directory(path.parent)
        except OSError as error:
            self.close()
            raise ConfigError(f"cannot write {path}: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def append(self, data: bytes) -> None:
        """Write after what is there; nothing of it counts before `commit`. Raises OSError."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def sync(self) -> int:
        """Have what was appended on the disk. Returns the length that may be committed. Raises OSError."""
        os.fsync(self._file)
        return os.lseek(self._file, 0, os.SEEK_CUR)

    def commit(self, length: int) -> None:
        """What `sync` returned counts from now on."""
        self.length = length

    def cut(self) -> None:
        """Forget what was appended after the last commit. Raises OSError."""
        os.ftruncate(self._file, self.length)
        os.lseek(self._file, self.length, os.SEEK_SET)

    def close(self) -> None:
        os.close(self._file)

    def _check(self) -> None:
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"cannot write {self.path}: it is not a regular file, so the job could not be resumed")
        if found.st_size < self.length:
            raise ConfigError(
                f"{self.path} holds {found.st_size} bytes, fewer than the {self.length} that the journal knows of: "
                "bring the file back, or begin anew without the job's files"
            )


def sync_directory(folder: Path) -> None:
    """Have the names of new files on the disk. Raises OSError."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
