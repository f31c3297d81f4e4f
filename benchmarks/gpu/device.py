"""What the run is on: versions, the GPU, its driver and its memory."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import jax

from benchmarks import machine
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.tasks import Figure, Task
from jaxserve.executor.gpu_options import is_gpu
from pallas_kernels.registry import Target

PACKAGES = (
    "jax",
    "jaxlib",
    "jax-cuda13-plugin",
    "jax-cuda12-plugin",
    "flax",
    "numpy",
    "nvidia-cudnn-cu13",
    "torch",
    "transformers",
    "flashinfer-python",
)
QUERY = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit"


class NoGpuError(RuntimeError):
    """There is nothing to measure."""


def tasks(sizes: Sizes) -> Iterator[Task]:
    """Look. Raises NoGpuError where sizes are a GPU's and jax has none: on a CPU they would take hours."""
    found = jax.devices()[0]
    if sizes.platform == "gpu" and not is_gpu(found):
        raise NoGpuError(f"jax finds no GPU, but {found.device_kind}")
    yield Task({"platform": sizes.platform}, describe)


def describe() -> Figure:
    """Facts of the machine and its devices."""
    devices = jax.devices()
    return machine.describe() | {
        "device": devices[0].device_kind,
        "devices": len(devices),
        "target": str(Target.of(devices[0])),
        "memory_bytes": machine.memory_bytes(),
        "nvidia_smi": _nvidia_smi(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _nvidia_smi() -> list[str]:
    """What the driver says of every GPU, in the order of QUERY; empty where there is no driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=30).stdout.splitlines()
