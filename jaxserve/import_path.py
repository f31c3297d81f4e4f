"""Takes the current directory off the import path of commands, before anything is imported that a file there could hide.

Imports only modules that every interpreter has loaded when it starts.
"""

from __future__ import annotations

import os
import sys

PACKAGE = os.path.dirname(os.path.abspath(__file__))
_INSTALLED = os.path.join(PACKAGE, "packages")  # by a wheel
ROOT = _INSTALLED if os.path.isdir(_INSTALLED) else os.path.dirname(PACKAGE)


def leave_current_directory() -> None:
    """In a process that `python -m jaxserve...` started: remove the current directory, which `-m` put first on the path."""
    if is_command(sys.argv, sys.orig_argv) and not sys.flags.safe_path:
        try:
            sys.path[:] = without_current_directory(sys.path, os.getcwd())
        except OSError:  # a deleted directory, which Python does not put on the path
            return


def is_command(argv: list[str], orig_argv: list[str]) -> bool:
    """Whether the interpreter is about to run a module of ours with -m, which it has not found yet."""
    if argv[:1] != ["-m"]:
        return False
    module = orig_argv[-len(argv)]
    if module.startswith("-"):  # -mjaxserve.serve
        module = module.partition("m")[2]
    return module == "jaxserve" or module.startswith("jaxserve.")


def without_current_directory(path: list[str], directory: str) -> list[str]:
    """An import path without its first entry if that is the current directory and not our own home."""
    first = path[0] if path else None
    ours = os.path.realpath(directory) == os.path.realpath(ROOT)
    return list(path if first not in ("", directory) or ours else path[1:])
