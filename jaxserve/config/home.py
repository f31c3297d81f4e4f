"""Paths below a person's home, for users without one, too: containers run processes as user ids that nothing knows."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from jaxserve.errors import ConfigError

_LOG = logging.getLogger(__name__)


def home_directory() -> Path | None:
    """This user's home directory; None if the user has none, or HOME is empty, relative or no directory that can be reached."""
    if os.environ.get("HOME") == "":  # Python would take the root directory
        return None
    try:
        home = Path.home()
        return home if home.is_absolute() and home.is_dir() else None
    except (RuntimeError, OSError):
        return None


def expand_home(path: str | Path, param: str | None = None) -> Path:
    """A path whose leading `~` is the home directory. Raises ConfigError if there is no home."""
    path = Path(path)
    if path.parts[:1] != ("~",):
        with contextlib.suppress(RuntimeError):
            return path.expanduser()  # ~user
    elif (home := home_directory()) is not None:
        return home.joinpath(*path.parts[1:])
    raise ConfigError(f"{path}: this user has no home directory (set HOME, or give the whole path)", param=param)


def expand_paths(config: Any, *names: str) -> None:
    """Expand a leading `~` in fields of a frozen dataclass, which no shell expands in a YAML file or a program."""
    for name in names:
        path = getattr(config, name)
        if isinstance(path, str) and path.startswith("~"):
            object.__setattr__(config, name, str(expand_home(path, name)))


def cache_directory() -> Path | None:
    """A directory for files that later starts can use: ~/.cache/jaxserve, otherwise one of this user in the temporary directory.

    None, with a line in the log, if neither can be written to.
    """
    home = home_directory()
    if home is not None:
        path = _writable(home / ".cache" / "jaxserve")
        if path is not None:
            return path
    try:
        return _private(Path(tempfile.gettempdir()) / f"jaxserve-cache-{os.geteuid()}")
    except OSError as error:
        _LOG.warning("no directory to cache files in: no home that can be written to, and %s", error)
        return None


def _writable(path: Path) -> Path | None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return path if os.access(path, os.W_OK | os.X_OK) else None


def _private(path: Path) -> Path:
    """A directory that only this user can enter: programs are run from it. Raises OSError if it is another user's."""
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not a directory of this user alone")
    return path
