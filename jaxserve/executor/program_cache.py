"""Programs that earlier starts compiled: the same engine does not trace them again, and no engine compiles the same text again.

jax's own cache finds a program by its text, which has to be made first: with small models that takes longer than all else of a
second start. Here a folder named by a digest of the engine's identity has its programs by name. Where a name is missing, after an
update or with other settings, the program is found by its text. jax's cache is not used: on CPUs a program that it returns lacks
functions once it is written again, so it could not be kept by name, and every start would trace it. Like jax's, the directory
holds code that is run: it must be trusted like the engine itself.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
import threading
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import msgspec
from jax.experimental import serialize_executable

from jaxserve.config.runtime import xla_flags
from jaxserve.executor.identity import environment, identity
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.program_bundle import load_program
from jaxserve.executor.program_spec import ProgramSpec

logger = logging.getLogger(__name__)

MAX_ENGINES = 32  # folders kept; with 10 programs each takes about 3 MB
MAX_TEXTS = 10 * MAX_ENGINES
TEXTS = "texts"  # the folder of all engines' programs
# An option that changes no program. It is part of the key of jax's cache, so with a random value nothing is found there.
_NEVER_CACHED = "xla_debug_buffer_assignment_show_max"
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
        self._folder = directory / _digest(identity(lowering), xla_flags())
        self._texts = directory / TEXTS
        self._environment = environment(lowering.mesh), xla_flags()
        self._devices = list(lowering.mesh.devices.flat)

    def load(self, spec: ProgramSpec) -> Any | None:
        """The program of a spec (jax.stages.Compiled). None if it is not there, or damaged, which is logged."""
        found = self._read(self._path(spec), spec)
        return None if found is None else found[0]

    def make(self, spec: ProgramSpec) -> Any:
        """Find a spec's program by its text, or compile it, and keep it by name. If it cannot be kept, that is logged."""
        lowered = spec.lower()
        by_text = self._texts / f"{self._text(spec, lowered)}.program"
        found = self._read(by_text, spec)
        if found is not None:
            program, content = found
            self._keep(spec, content, self._path(spec))
            return program
        program = lowered.compile(compiler_options={**spec.options, _NEVER_CACHED: str(secrets.randbits(31))})
        try:
            packed = zlib.compress(serialize_executable.serialize(program)[0], _FAST)
        except Exception as error:  # a backend that cannot: serving goes on without
            logger.warning("the program %s is not kept: %s", spec.name, error)
            return program
        self._keep(spec, hashlib.sha256(packed).digest() + packed, self._path(spec), by_text)
        return program

    def _text(self, spec: ProgramSpec, lowered: Any) -> str:
        """A digest of all that a program depends on."""
        arguments = [str(aval) for aval in jax.tree.leaves(lowered.in_avals)]
        return _digest(*self._environment, dict(spec.options), arguments, lowered.as_text())

    def _path(self, spec: ProgramSpec) -> Path:
        return self._folder / f"{spec.name}.program"

    def _read(self, path: Path, spec: ProgramSpec) -> tuple[Any, bytes] | None:
        """A program and its file's content."""
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
            os.utime(path if path.parent == self._texts else path.parent)  # used: others are removed first
        return program, content

    def _keep(self, spec: ProgramSpec, content: bytes, *paths: Path) -> None:
        try:
            for path in paths:
                self._write(path, content)
        except OSError as error:  # a full disk: serving goes on without
            logger.warning("the program %s is not kept: %s", spec.name, error)

    def _write(self, path: Path, content: bytes) -> None:
        """All or nothing: other processes may read and write the same."""
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_oldest(path.parent.parent, MAX_ENGINES, besides=self._texts)
        part = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        part.write_bytes(content)
        part.replace(path)
        if path.parent == self._texts:
            _remove_oldest(self._texts, MAX_TEXTS)


def _digest(*content: object) -> str:
    return hashlib.blake2b(msgspec.json.encode(content), digest_size=16).hexdigest()


def _remove_oldest(directory: Path, most: int, besides: Path | None = None) -> None:
    """Remove all but `most` files or folders of a directory: those that were used last stay."""
    ages = []
    for entry in directory.iterdir():
        if entry != besides:
            with suppress(OSError):
                ages.append((entry.stat().st_mtime, entry))
    for _, entry in sorted(ages, reverse=True)[most:]:
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
