"""What a compiled program depends on. One that was made with any other value of it belongs to another engine."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import asdict
from pathlib import Path

import jax
from jax.sharding import Mesh

from jaxserve.executor.lowering import Lowering
from jaxserve.import_path import PACKAGE, ROOT
from jaxserve.jax_settings import keyed_settings
from jaxserve.versions import version_of
from jaxserve.weights.stored_schemes import ParameterPath, held_schemes
from pallas_kernels import native
from pallas_kernels.matmul import Matrix
from pallas_kernels.quantization import Scheme
from sharding import EXPERT

PACKAGES = ("jaxserve", "jax", "jaxlib", "flax", "numpy")
CUDA_PACKAGES = ("jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin", "jax-cuda13-pjrt")
TRACED = ("jaxserve", "pallas_kernels", "sharding")  # packages whose code becomes programs
_NO_PART = ("dtype", "eos_token_ids")  # of DecoderConfig: the checkpoint's dtype, and what stops a request
_CPU_INFO = Path("/proc/cpuinfo")

Identity = dict[str, str]
"""Field -> value. Text, so that it is the same when it comes back from a file."""


def identity(lowering: Lowering) -> Identity:
    options, mesh = lowering.options, lowering.mesh
    decoder = {f"model.{name}": value for name, value in asdict(lowering.config).items() if name not in _NO_PART}
    shapes = {
        "tensor_parallel_size": mesh.devices.size,
        "expert_parallel_size": mesh.shape[EXPERT],
        "dtype": options.dtype,
        "quantization": options.quantization,
        "stored": _held(lowering),
        "kv_dtype": options.kv_dtype,
        "page_size": options.page_size,
        "num_pages": options.num_pages,
        "max_model_len": options.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "kernels": options.kernels,
        "deterministic": options.deterministic,
        "max_drafts": options.max_drafts,
        "routed_experts": options.routed_experts,
        "adapters": None if options.adapters is None else list(options.adapters),
        "states": None if options.states is None else (options.states.count, options.states.width),
        "row_options": lowering.row_options.names,
        "readers": tuple((reader.name + " " + reader.detail).strip() for reader in lowering.readers),
        "rules": tuple(rule.option.name for rule in lowering.rules),
        "draft": None if lowering.draft is None else lowering.draft.model,
    }
    xla = {"compiler_options": lowering.compiler_options}
    return environment(mesh) | {name: str(value) for name, value in (_code() | decoder | shapes | xla).items()}


def environment(mesh: Mesh) -> Identity:
    """What programs of the same text depend on, too."""
    versions = {name: version_of(name) for name in (*PACKAGES, *CUDA_PACKAGES)}
    return {name: str(value) for name, value in (versions | _machine(mesh) | keyed_settings()).items()}


def _held(lowering: Lowering) -> tuple[tuple[ParameterPath, Scheme], ...]:
    """Parameters that are held as the checkpoint has them: few or none of those that could be, by device."""
    stored = held_schemes(lowering.options.stored, lowering.options.quantization)
    leaves = jax.tree.leaves_with_path(lowering.params, is_leaf=lambda leaf: isinstance(leaf, Matrix))
    named = ((tuple(str(key.key) for key in keys), leaf) for keys, leaf in leaves)
    matrices = ((path, leaf.scheme) for path, leaf in named if isinstance(leaf, Matrix) and path in stored)
    return tuple((path, scheme) for path, scheme in matrices if scheme in stored[path])


def _code() -> dict[str, object]:
    """A digest of this package's code, which changes more often than its version."""
    digest = hashlib.blake2b(digest_size=8)
    for name in TRACED:
        _add_code(digest, Path(PACKAGE) if name == "jaxserve" else Path(ROOT, name), name)
    return {"code": digest.hexdigest()}


def _add_code(digest: hashlib.blake2b, folder: Path, place: str) -> None:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{place}/{entry.name}"
        if entry.is_dir():
            _add_code(digest, entry, name)
        elif entry.name.endswith(".py"):
            digest.update(f"{name}\0".encode() + entry.read_bytes() + b"\0")


def _machine(mesh: Mesh) -> dict[str, object]:
    """The kind of the devices; of CPUs, the instructions that they have."""
    device = mesh.devices.flat[0]
    kind: dict[str, object] = {
        "platform": "gpu" if device.platform == "cuda" else device.platform,
        "device": device.device_kind,
        "compute_capability": getattr(device, "compute_capability", None),
        "core_count": getattr(device, "core_count", None),
    }
    if device.platform == "cpu":
        kind["device"] = f"{platform.machine()} {_cpu_features()}"
        kind["native_kernels"] = native.missing() or native.digest()  # programs call them by the digest
    return kind


def _cpu_features() -> str:
    """A digest of the instruction sets that the operating system names."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return hashlib.blake2b(flags.encode(), digest_size=8).hexdigest()
