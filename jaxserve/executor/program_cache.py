"""Programs that earlier starts compiled, found by what they depend on: neither traced nor lowered again.

jax's own cache finds a program by its text, which has to be made first: with small models that takes longer than all else of a
second start. Here a folder is named by a digest of the engine's identity. Like jax's cache, the directory holds code that is
run: it must be trusted like the engine itself.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
import weakref
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import msgspec
from jax.experimental import serialize_executable

from jaxserve.config.runtime import xla_flags
from jaxserve.executor.identity import identity
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.program_bundle import load_program
from jaxserve.executor.program_spec import ProgramSpec

logger = logging.getLogger(__name__)

MAX_ENGINES = 32  # folders kept; with 10 programs each takes about 3 MB
_COMPILED = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT = "/jax/compilation_cache/cache_hits"
_DIGEST_BYTES = 32
_FAST = 1  # zlib's level


class ProgramCache:
    """The programs of one engine in a directory that several share. May be used by several threads and processes.

    Attributes:
        names: none: what there is shows when it is asked for.

    Args:
        directory: of all engines.
    """

    def __init__(self, directory: Path, lowering: Lowering) -> None:
        self.names: frozenset[str] = frozenset()
        content = msgspec.json.encode((identity(lowering), xla_flags()))
        self._folder = directory / hashlib.blake2b(content, digest_size=16).hexdigest()
        self._devices = list(lowering.mesh.devices.flat)
        self._compiled = _Compiled()

    def load(self, spec: ProgramSpec) -> Any | None:
        """The program of a spec (jax.stages.Compiled). None if it is not there, or damaged, which is logged."""
        path = self._path(spec)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        try:
            digest, packed = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            if hashlib.sha256(packed).digest() != digest:
                raise ValueError("the checksum is another")
            program = load_program(zlib.decompress(packed), spec, self._devices)
        except Exception as error:  # whatever is wrong with the file: pickle and XLA raise what they like
            logger.warning("the kept program %s cannot be loaded, compiling: %s", path, error)
            return None
        with suppress(OSError):
            os.utime(self._folder)  # used: others are removed first
        return program

    def make(self, spec: ProgramSpec) -> Any:
        """Compile a spec, and keep what came of it. Where it cannot be kept it is logged."""
        before = self._compiled.by_this_thread()
        program = spec.compile()
        if self._compiled.by_this_thread() == before:  # on CPUs what jax's cache gave lacks functions once it is written again
            return program
        try:
            packed = zlib.compress(serialize_executable.serialize(program)[0], _FAST)
            self._write(self._path(spec), hashlib.sha256(packed).digest() + packed)
        except Exception as error:  # a full disk, a backend that cannot: serving goes on without
            logger.warning("the program %s is not kept: %s", spec.name, error)
        return program

    def _path(self, spec: ProgramSpec) -> Path:
        return self._folder / f"{spec.name}.program"

    def _write(self, path: Path, content: bytes) -> None:
        """All or nothing: other processes may read and write the same."""
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_oldest(path.parent.parent)
        part = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        part.write_bytes(content)
        part.replace(path)


def _remove_oldest(directory: Path) -> None:
    ages = []
    for folder in directory.iterdir():
        with suppress(OSError):
            ages.append((folder.stat().st_mtime, folder))
    for _, folder in sorted(ages, reverse=True)[MAX_ENGINES:]:
        shutil.rmtree(folder, ignore_errors=True)


class _Compiled:
    """How many programs each thread compiled itself: jax's cache did not have them, nor did this process.

    One listener of each kind for all threads: they come and go while others are told.
    """

    def __init__(self) -> None:
        counts: Counter[int] = Counter()

        def done(event: str, duration_secs: float, **_: str | int) -> None:  # also told of what the cache gave
            if event == _COMPILED:
                counts[threading.get_ident()] += 1

        def hit(event: str, **_: str | int) -> None:
            if event == _CACHE_HIT:
                counts[threading.get_ident()] -= 1

        self._counts = counts
        jax.monitoring.register_event_duration_secs_listener(done)
        jax.monitoring.register_event_listener(hit)
        weakref.finalize(self, jax.monitoring.unregister_event_duration_listener, done)
        weakref.finalize(self, jax.monitoring.unregister_event_listener, hit)

    def by_this_thread(self) -> int:
        return self._counts[threading.get_ident()]
