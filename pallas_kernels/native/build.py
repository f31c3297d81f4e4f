"""Compiles the native library: every source by itself, several at a time, then one link."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path

import jax

from pallas_kernels.native.library import BUILT, FLAGS, INSTRUCTION_SETS, PACKAGE, instruction_set, library_path, sources

COMPILERS = ("g++", "clang++")


class BuildError(RuntimeError):
    """The compiler refused; the message is its own."""


def find_compiler() -> str | None:
    """The first of COMPILERS that is on the path."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def build(compiler: str) -> Path:
    """Compile the library and return its file, in place of any other for this jaxlib.

    Raises:
        BuildError: the compiler failed.
        OSError: the package's folder cannot be written.
    """
    path = library_path()
    BUILT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(partial(_compile, compiler, Path(scratch)), sources()))
        linked = Path(scratch) / path.name
        _run([compiler, "-shared", *map(str, objects), "-o", str(linked)])
        os.replace(linked, path)  # whoever loads it meanwhile finds a whole one
    for other in BUILT.glob(f"{version('jaxlib')}-*.so"):
        if other != path:
            other.unlink(missing_ok=True)
    return path


def _compile(compiler: str, scratch: Path, source: Path) -> Path:
    result = scratch / f"{source.parent.name}-{source.stem}.o"
    wanted = instruction_set(source)
    flags = FLAGS if wanted is None else (*FLAGS, *INSTRUCTION_SETS[wanted])
    # jaxlib's headers are not ours to warn about.
    headers = (f"-I{PACKAGE.parent}", "-isystem", jax.ffi.include_dir())
    _run([compiler, *flags, *headers, "-c", str(source), "-o", str(result)])
    return result


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")
