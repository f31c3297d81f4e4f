"""Import `pallas_kernels`, `server` and `sharding` from where they were installed, whatever else has these names.

They are common names: the current directory, the folder of a user's script or another distribution may have modules called
like that. Processes of ours (commands and their children) resolve the names here and nowhere else. In a user's process only
modules of ours do, so that the user's own `server` stays importable.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from jaxserve.standard_streams import guard_streams

NAMES = ("pallas_kernels", "server", "sharding")
PACKAGE = os.path.dirname(os.path.abspath(__file__))
_INSTALLED = os.path.join(PACKAGE, "packages")  # by a wheel
ROOT = _INSTALLED if os.path.isdir(_INSTALLED) else os.path.dirname(PACKAGE)
_FOLDERS = tuple(folder + os.sep for folder in (PACKAGE, *(os.path.join(ROOT, name) for name in NAMES)))
_COMMAND = re.compile(r"(-\w*?m)?jaxserve(\..*)?")


class OwnPackages(MetaPathFinder):
    """Finder of the packages.

    Args:
        everywhere: for every import of this process; otherwise for imports by our modules only.
    """

    def __init__(self, *, everywhere: bool = False) -> None:
        self.everywhere = everywhere

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in NAMES or not (self.everywhere or _imported_by_us()):
            return None
        return PathFinder.find_spec(fullname, [ROOT])


def install() -> None:
    """Resolve the names for our modules; in a process that `python -m jaxserve...` started, for all modules.

    Such a process also forgets the current directory, which `-m` put on its path.
    """
    if is_command(sys.argv, sys.orig_argv):
        sys.path[:] = without_current_directory(sys.path, os.getcwd())
        own_process()
    else:
        _finder()


def own_process() -> None:
    """Prepare a process that runs our code only: its standard streams, and the names for every import."""
    guard_streams()
    resolve_everywhere()


def resolve_everywhere() -> None:
    """Resolve the names for every import of this process."""
    _finder().everywhere = True


def is_command(argv: Sequence[str], orig_argv: Sequence[str]) -> bool:
    """Whether the interpreter is about to run a module of ours with -m, which it has not found yet."""
    return list(argv[:1]) == ["-m"] and _COMMAND.fullmatch(orig_argv[-len(argv)]) is not None


def without_current_directory(path: Sequence[str], directory: str) -> list[str]:
    """An import path without its first entry if that is the current directory and not our own home."""
    first = path[0] if path else None
    ours = os.path.realpath(directory) == os.path.realpath(ROOT)
    return list(path if first not in ("", directory) or ours else path[1:])


def hidden_by() -> str | None:
    """What hides a package of ours that was imported by another before, and what to do; None if nothing does."""
    for name in NAMES:
        module = sys.modules.get(name)
        place = None if module is None else getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
        if place is not None and not os.path.abspath(place).startswith(_FOLDERS):
            return f"{place} hides jaxserve's own package {name!r}: rename it, or import jaxserve.LLM before it"
    return None


def _finder() -> OwnPackages:
    found = next((one for one in sys.meta_path if isinstance(one, OwnPackages)), None)
    if found is None:
        found = OwnPackages()
        sys.meta_path.insert(0, found)
    return found


def _imported_by_us() -> bool:
    """Whether the innermost frame that is not importlib's runs code of ours."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_FOLDERS)
