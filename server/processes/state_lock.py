"""One server a state directory, or of several that share it one that runs its batches: whoever comes second is told so."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from jaxserve.errors import ConfigError

_NAME = "lock"
_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700


class StateTakenError(ConfigError):
    """Another server has the directory."""


class StateLock:
    """The lock on a state directory. It is held for as long as anybody has its descriptor open: children that inherit it, and so
    may still write, keep the next server out after their parent was killed.

    Args:
        root: the directory; made if it is not there.

    Raises StateTakenError if another server has it, ConfigError if it cannot be written.
    """

    def __init__(self, root: Path) -> None:
        try:
            root.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
            self.descriptor = os.open(root / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
        except OSError as error:
            raise ConfigError(f"state_dir: cannot use {root}: {error.strerror}", param="state_dir") from error
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self.descriptor)
            raise StateTakenError(f"state_dir: another server uses {root}", param="state_dir") from error

    def close(self) -> None:
        os.close(self.descriptor)
