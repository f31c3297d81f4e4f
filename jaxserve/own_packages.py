"""Import `pallas_kernels`, `server` and `sharding` from where they were installed, whatever else has these names.

They are common names: the current directory, the folder of a user's script or another distribution may have modules called
like that. Processes of ours (commands and their children) resolve the names here and nowhere else. In a user's process only
modules of ours do. If the user has a module of the same name there, ours is imported as `jaxserve.packages.NAME`, so that the
user's own stays importable.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from jaxserve.import_path import PACKAGE, ROOT, is_command
from jaxserve.standard_streams import fill_descriptors, guard_streams

NAMES = ("pallas_kernels", "server", "sharding")
_FOLDERS = tuple(folder + os.sep for folder in (PACKAGE, *(os.path.join(ROOT, name) for name in NAMES)))
_PRIVATE = "jaxserve.packages"


class OwnPackages(MetaPathFinder):
    """Finder of the packages.

    Args:
        everywhere: for every import of this process; otherwise for imports by our modules only.
    """

    def __init__(self, *, everywhere: bool = False) -> None:
        self.everywhere = everywhere

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.startswith("jaxserve.") and not self.everywhere:
            _redirect(foreign_names())
        if fullname not in NAMES or not (self.everywhere or _imported_by_us()):
            return None
        return PathFinder.find_spec(fullname, [ROOT])


class RedirectedImport:
    """Stands in for `builtins.__import__` in a process with foreign modules of our packages' names.

    Attributes:
        names: packages that our modules get under their private name.
    """

    def __init__(self, original: Callable[..., ModuleType]) -> None:
        self._original = original
        self.names: set[str] = set()

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        package = name.partition(".")[0]
        if level or package not in self.names or not _is_ours((globals or {}).get("__file__")):
            return self._original(name, globals, locals, fromlist, level)
        module = self._original(f"{_PRIVATE}.{name}", globals, locals, fromlist, level)
        return module if fromlist else sys.modules[f"{_PRIVATE}.{package}"]


def install() -> None:
    """Resolve the names for our modules; in a process that `python -m jaxserve...` started, for all modules."""
    if is_command(sys.argv, sys.orig_argv):
        own_process()
    else:
        fill_descriptors()
        _finder()


def own_process() -> None:
    """Prepare a process that runs our code only: its standard streams, and the names for every import."""
    guard_streams()
    _finder().everywhere = True


def foreign_names() -> list[str]:
    """Our packages' names under which this process has, or would find, a module that is not ours."""
    return [name for name in NAMES if not all(map(_is_ours, _places(name)))]


def _places(name: str) -> list[str | None]:
    """Where the module of a name is, or would be imported from; nothing if there is none."""
    module = sys.modules.get(name)
    spec = PathFinder.find_spec(name) if module is None else getattr(module, "__spec__", None)
    if spec is None:
        return [] if module is None else [getattr(module, "__file__", None)]
    return [spec.origin] if spec.has_location else [place + os.sep for place in spec.submodule_search_locations or ()]


def _redirect(names: Collection[str]) -> None:
    """Let our modules import packages of these names under their private names from now on."""
    if not names:
        return
    current = builtins.__import__
    if not isinstance(current, RedirectedImport):
        current = RedirectedImport(current)
        builtins.__import__ = current
        private = ModuleType(_PRIVATE)
        private.__path__ = [ROOT]
        sys.modules.setdefault(_PRIVATE, private)
    current.names.update(names)


def _finder() -> OwnPackages:
    found = next((one for one in sys.meta_path if isinstance(one, OwnPackages)), None)
    if found is None:
        found = OwnPackages()
        sys.meta_path.insert(0, found)
    return found


def _imported_by_us() -> bool:
    """Whether the innermost frame that is neither importlib's nor this module's runs code of ours."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("importlib", __name__)):
        frame = frame.f_back
    return _is_ours(frame.f_code.co_filename)


def _is_ours(place: str | None) -> bool:
    return place is not None and place.startswith(_FOLDERS)
