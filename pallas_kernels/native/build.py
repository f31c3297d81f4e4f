"""Compiles the native library: every source by itself, several at a time, then one link."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path

import jax

from pallas_kernels.native.library import (
    BUILT,
    FLAGS,
    INSTRUCTION_SETS,
    PACKAGE,
    folders,
    instruction_set,
    libraries,
    library_name,
    sources,
)
from pallas_kernels.native.objects import early_code
from pallas_kernels.native.self_test import SUFFIX

COMPILERS = ("g++", "clang++")
KEPT = 4  # libraries for one jaxlib in a cache, which installations of several releases may share


class BuildError(RuntimeError):
    """There is no library, and why.

    The compiler failed (its own message starts at the second line), an object file has code that runs too early, or no folder is
    writable.
    """


class NoCompilerError(BuildError):
    """None of COMPILERS is on the path."""


def find_compiler() -> str | None:
    """The first of COMPILERS that is on the path."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def provide(broken: Collection[Path] = ()) -> Path:
    """The library's file, compiled if it is not there, once for all processes that ask at the same time.

    Args:
        broken: files that are there and cannot be loaded.

    Raises:
        BuildError: there is none.
    """
    if found := [path for path in libraries() if path not in broken]:
        return found[0]
    if (compiler := find_compiler()) is None:
        raise NoCompilerError(f"there is no compiler ({' or '.join(COMPILERS)})")
    refused = []
    for folder in folders():
        path = folder / library_name()
        try:
            with _alone(folder):
                return path if path.is_file() and path not in broken else _build(compiler, path)
        except OSError as error:
            refused.append(str(error))
    raise BuildError(f"there is no place for it: {'; '.join(refused)}")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time. Where files cannot be locked each builds its own, and the last one stays."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(compiler: str, path: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(partial(_compile, compiler, Path(scratch)), sources()))
        linked = Path(scratch) / path.name
        _run([compiler, "-shared", *map(str, objects), "-o", str(linked)])
        os.replace(linked, path)  # whoever loads it meanwhile finds a whole one
    others = [other for other in path.parent.glob(f"{version('jaxlib')}-*.so") if other != path]
    others.sort(key=lambda other: other.stat().st_mtime, reverse=True)
    for other in others if path.parent == BUILT else others[KEPT - 1 :]:
        for file in (other, *path.parent.glob(f"{other.name}.*{SUFFIX}")):
            file.unlink(missing_ok=True)
    return path


def _compile(compiler: str, scratch: Path, source: Path) -> Path:
    result = scratch / f"{source.parent.name}-{source.stem}.o"
    wanted = instruction_set(source)
    flags = FLAGS if wanted is None else (*FLAGS, *INSTRUCTION_SETS[wanted])
    # jaxlib's headers are not ours to warn about.
    headers = (f"-I{PACKAGE.parent}", "-isystem", jax.ffi.include_dir())
    _run([compiler, *flags, *headers, "-c", str(source), "-o", str(result)])
    if wanted is not None and (found := early_code(result)):
        name = f"{source.parent.name}/{source.name}"
        reason = f"{name} is compiled for {wanted}, but CPUs without it would run some of its code"
        raise BuildError(f"{reason}: {', '.join(found)}\nSee pallas_kernels/native/objects.py.")
    return result


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"the compiler failed: {' '.join(command)}\n{done.stderr}")
