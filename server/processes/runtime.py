"""The directory where a server's processes meet, and what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxserve.config.runtime import user_runtime_directory
from jaxserve.errors import ConfigError
from jaxserve.metrics.shared import DEAD, is_alive

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between looks whether all is there
_REMIND_SECONDS = 60.0  # between two lines about a directory that cannot be made
_LONGEST_PATH = 107  # bytes of a Unix socket's name
_OF_PROCESS = re.compile(r"\w+_(\d+)\.db")  # metrics
_CANNOT_LOOK = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # of this process or machine: they say nothing of the directory
_PREFIX, _ENGINE, _METRICS, _RUN = "jaxserve-", "engine", "metrics", "run"


class RuntimeDirectory:
    """The engine's socket and the metrics that processes share, in a directory that only this user can enter.

    It is made in the first of these that will do: the user's runtime directory, `run` in the state directory, the temporary
    directory. Cleaners of temporary files come to the last one only, and systemd's leaves alone what is locked, as it is.

    Attributes:
        path: where it is now.

    Args:
        state_dir: of the server, which holds its lock; None if it has none.

    Raises ConfigError if it cannot be made.
    """

    def __init__(self, state_dir: str | None) -> None:
        self._state_run = None if state_dir is None else Path(state_dir) / _RUN
        if self._state_run is not None:
            shutil.rmtree(self._state_run, ignore_errors=True)  # of a server that was killed
        self._seen: set[str] = set()
        self._missing: set[str] = set()
        try:
            self.path, self._lock = self._make()
        except OSError as error:
            raise ConfigError(
                f"no directory for the server's sockets can be made: {error}; set TMPDIR to a directory with free space"
            ) from error

    @property
    def engine(self) -> str:
        """ZeroMQ endpoint of the engine."""
        return f"ipc://{self.path / _ENGINE}"

    @property
    def metrics(self) -> Path:
        return self.path / _METRICS

    def lost(self) -> bool:
        """Whether it is gone, or a file of a live process that was there and is not, at two looks in a row."""
        try:
            there = self._there()
        except OSError as error:
            return error.errno not in _CANNOT_LOOK
        missing = {name for name in self._seen - there if _is_missed(name)}
        twice = missing & self._missing
        self._missing, self._seen = missing, there | missing
        return bool(twice)

    def note(self) -> None:
        """Note what is there already, which a look may be too late for."""
        with contextlib.suppress(OSError):
            self._seen |= self._there()

    def renew(self) -> None:
        """Make another and remove what is left of this one. What dead processes had counted comes along if it is there.

        Raises OSError if there is none to be had.
        """
        old, old_lock = self.path, self._lock
        self.path, self._lock = self._make()
        self._seen, self._missing = set(), set()
        with contextlib.suppress(OSError):
            for path in (old / _METRICS).glob(f"*_{DEAD}.db"):
                shutil.copy(path, self.metrics / path.name)
        os.close(old_lock)
        shutil.rmtree(old, ignore_errors=True)

    def remove(self) -> None:
        os.close(self._lock)
        shutil.rmtree(self.path, ignore_errors=True)

    def _there(self) -> set[str]:
        """Names of the files that processes made here. Raises OSError if the directory is gone."""
        there = {path.name for path in self.metrics.iterdir() if _OF_PROCESS.fullmatch(path.name)}
        return there | {_ENGINE} if (self.path / _ENGINE).exists() else there

    def _make(self) -> tuple[Path, int]:
        """A new directory, with a lock on it."""
        failure: OSError = FileNotFoundError("there is no place whose name is short enough for a socket's")
        for root in self._roots():
            try:
                if root == self._state_run:
                    root.mkdir(mode=0o700, exist_ok=True)
                path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))  # for this user alone
                if len(os.fsencode(path / _ENGINE)) > _LONGEST_PATH:
                    path.rmdir()
                    continue
                (path / _METRICS).mkdir()
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError as error:
                failure = error
                continue
            fcntl.flock(lock, fcntl.LOCK_SH)
            return path, lock
        raise failure

    def _roots(self) -> Iterator[Path]:
        of_user = user_runtime_directory()
        if of_user is not None:
            yield of_user
        if self._state_run is not None:
            yield self._state_run
        yield Path(tempfile.gettempdir())


def _is_missed(name: str) -> bool:
    """Whether a file that is no longer there should be; those of dead processes are buried."""
    process = _OF_PROCESS.fullmatch(name)
    return process is None or is_alive(int(process[1]))


async def keep(runtime: RuntimeDirectory, moved: Callable[[OSError | None], None]) -> None:
    """Look after the directory until cancelled: make another where it is lost, again and again until that works.

    Args:
        moved: told when it is elsewhere, and before why it cannot be.
    """
    failed = 0.0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if not runtime.lost():
            continue
        old = runtime.path
        try:
            runtime.renew()
        except OSError as error:
            if failed % _REMIND_SECONDS == 0.0:
                _LOG.error("the runtime directory %s is lost and no other can be made, which is tried on: %s", old, error)
            failed += LOOK_SECONDS
            moved(error)
        else:
            failed = 0.0
            _LOG.warning("the runtime directory %s was lost: sockets and metrics are in %s now", old, runtime.path)
            moved(None)
