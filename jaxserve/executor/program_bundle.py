"""Compiled programs in a directory: a file each, and a manifest that says what they are for.

The files hold pickles, which can run any code when they are loaded: the directory must be trusted like the code itself. The
checksums find damage, not malice.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import msgspec
from jax.experimental import serialize_executable

from jaxserve.errors import ConfigError
from jaxserve.executor.autotune_results import autotune_options, save_results, saved_results
from jaxserve.executor.gpu_options import is_gpu
from jaxserve.executor.identity import Identity, identity
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.program_spec import ProgramSpec

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
FORMAT = 1


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the manifest holds.

    Attributes:
        num_pages: pages of the KV cache that the programs are for.
        engine: the programs' identity.
        programs: sha256 of every program's file, by the program's name.
    """

    format: int
    num_pages: int
    engine: Identity
    programs: dict[str, str]


class ProgramBundle:
    """The programs of a directory that are for this engine.

    Attributes:
        names: of these programs; none if the directory's are for another engine, which is logged with every field that differs.
    """

    def __init__(self, directory: Path, manifest: Manifest, lowering: Lowering) -> None:
        here = identity(lowering)
        different = _differences(manifest.engine, here)
        if different:
            logger.warning("the programs in %s are for another engine, compiling: %s", directory, "; ".join(different))
        self.names = frozenset() if different else frozenset(manifest.programs)
        self._directory = directory
        self._checksums = manifest.programs
        self._devices = list(lowering.mesh.devices.flat)
        beside = saved_results(directory) if lowering.options.autotune_results is None else None
        self._tuned = autotune_options(self._devices[0], beside, adds=False)

    def load(self, spec: ProgramSpec) -> Any | None:
        """The program of a spec (jax.stages.Compiled). None if it is not there, or damaged, which is logged as an error."""
        if spec.name not in self.names:
            return None
        path = program_path(self._directory, spec.name)
        try:
            content = path.read_bytes()
            if _checksum(content) != self._checksums[spec.name]:
                raise ValueError("the checksum is not the manifest's")
            return load_program(content, spec, self._devices)
        except Exception as error:  # whatever is wrong with the file: pickle and XLA raise what they like
            logger.error("the saved program %s cannot be loaded, compiling: %s", path, error)
            return None

    def make(self, spec: ProgramSpec) -> Any:
        """Compile what cannot be loaded, with what was measured of kernels before; the directory stays as it is."""
        return spec.compile(self._tuned)


def load_program(content: bytes, spec: ProgramSpec, devices: Sequence[jax.Device]) -> Any:
    """The program of a spec (jax.stages.Compiled) from its bytes. Raises whatever pickle and XLA raise for others."""
    if is_gpu(devices[0]):
        import_module("jax.experimental.mosaic.gpu")  # tells XLA where the library is that starts Mosaic's kernels
    trees = (jax.tree.structure((spec.arguments, {})), jax.tree.structure(spec.result))
    return serialize_executable.deserialize_and_load(content, *trees, backend=devices[0].client, execution_devices=list(devices))


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a directory; None if it is damaged, which is logged as an error. Raises ConfigError if there is none."""
    path = directory / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise ConfigError(f"programs: cannot read {path}: {error.strerror}", param="programs") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        logger.error("the manifest %s cannot be read, compiling: %s", path, error)
        return None
    if manifest.format != FORMAT:
        logger.error("the manifest %s has format %d, not %d, compiling", path, manifest.format, FORMAT)
        return None
    return manifest


def save_programs(directory: Path, lowering: Lowering, programs: Mapping[str, Any]) -> int:
    """Write programs by name, and last the manifest, so that what was cut short is nobody's. Returns how many bytes.

    Raises ConfigError: the directory cannot be written.
    """
    written, checksums = 0, {}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / MANIFEST).unlink(missing_ok=True)
        for name, program in programs.items():
            content = serialize_executable.serialize(program)[0]
            program_path(directory, name).write_bytes(content)
            checksums[name] = _checksum(content)
            written += len(content)
        engine = identity(lowering)
        manifest = Manifest(format=FORMAT, num_pages=lowering.options.num_pages, engine=engine, programs=checksums)
        save_results(lowering.options.autotune_results, directory)
        (directory / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    except OSError as error:
        raise ConfigError(f"output: cannot write {directory}: {error.strerror}", param="output") from error
    return written


def program_path(directory: Path, name: str) -> Path:
    return directory / f"{name}.program"


def _differences(saved: Identity, here: Identity) -> list[str]:
    """A line for every field that has another value, or is only on one side."""
    fields = [*here, *(name for name in saved if name not in here)]
    values = [(name, saved.get(name, "nothing"), here.get(name, "nothing")) for name in fields]
    return [f"{name}: saved {before}, here {now}" for name, before, now in values if before != now]


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
