"""A directory of adapters' directories that is watched: each is served under its name, for as long as it is there."""

from __future__ import annotations

import logging
import threading
import weakref
from pathlib import Path

from jaxserve.adapters.config import CONFIG
from jaxserve.adapters.store import AdapterStore
from jaxserve.errors import ConfigError, JaxserveError

logger = logging.getLogger(__name__)

SECONDS = 2.0  # between two looks

Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and time of each file: other ones say that there may be another adapter."""


class AdapterFolder:
    """Loads into a store what is new in a directory or has changed, and unloads what is gone.

    What cannot be served is logged, and tried again once it changes: a directory that is still being written comes with its last
    file. Names that begin with a dot are passed over. A name that was loaded by other means is left as it is.

    Raises ConfigError if there is no such directory.
    """

    def __init__(self, store: AdapterStore, directory: Path) -> None:
        if not directory.is_dir():
            raise ConfigError(f"lora_dir: no directory at {str(directory)!r}", param="lora_dir")
        self._store = store
        self._directory = directory
        self._seen: dict[str, Stamp] = {}
        self._is_lost = False

    def start(self) -> None:
        """Look from now on, in a thread of its own that ends with the folder."""
        stop = threading.Event()
        weakref.finalize(self, stop.set)
        threading.Thread(target=_watch, args=(weakref.ref(self), stop), name="jaxserve-lora-dir", daemon=True).start()

    def look(self) -> None:
        """Bring the store up to date."""
        try:
            found = {path.name: _stamp(path) for path in sorted(self._directory.iterdir()) if _is_adapter(path)}
        except OSError as error:  # a mount that went away, or files that went while they were looked at: adapters stay
            if not self._is_lost:
                logger.warning("lora_dir %s cannot be read: %s", self._directory, error)
            self._is_lost = True
            return
        self._is_lost = False
        for name in [name for name in self._seen if name not in found]:
            del self._seen[name]
            if self._is_ours(name):
                self._store.unload(name)
                logger.info("adapter %s is gone from %s", name, self._directory)
        for name, stamp in found.items():
            if self._seen.get(name) != stamp:
                self._seen[name] = stamp
                self._load(name)

    def _load(self, name: str) -> None:
        try:
            info = self._store.load(name, self._directory / name, in_place=self._is_ours(name))
        except JaxserveError as error:
            logger.warning("adapter %s of lora_dir is not served: %s", name, error.message)
        except OSError as error:  # taken away while it was read
            logger.warning("adapter %s of lora_dir cannot be read: %s", name, error)
        else:
            logger.info("adapter %s of %s: rank %d, %d modules", name, info.path, info.rank, info.modules)

    def _is_ours(self, name: str) -> bool:
        return any(info.name == name and info.path == str(self._directory / name) for info in self._store.listed())


def _is_adapter(path: Path) -> bool:
    return not path.name.startswith(".") and (path / CONFIG).is_file()


def _stamp(directory: Path) -> Stamp:
    stats = sorted((path.name, path.stat()) for path in directory.iterdir())
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def _watch(folder: weakref.ref[AdapterFolder], stop: threading.Event) -> None:
    while not stop.wait(SECONDS):
        here = folder()
        if here is None:
            return
        here.look()
        del here  # or the folder would live through the pause
