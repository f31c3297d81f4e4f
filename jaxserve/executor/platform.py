"""The choice between GPU and CPU, made before jax starts its devices."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec

import jax

CUDA_DRIVER = "libcuda.so.1"
CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def choose_platform(gpu_memory_fraction: float | None = None) -> None:
    """Say which devices jax is to start, and what share of a GPU's memory to take (None: jax's default).

    Call it before anything asks for devices.

    jax's CUDA plugin is part of the development environment, since it also compiles for GPUs that are elsewhere. Where there is
    no NVIDIA driver, jax would log that it cannot start the plugin, with a traceback: then CPUs are chosen. A platform that the
    process has chosen (JAX_PLATFORMS) stays as it is.
    """
    if not any(find_spec(name) for name in CUDA_PLUGINS):
        return
    if _has_driver():
        if gpu_memory_fraction is not None:
            # Taken at once: pieces taken as they are needed leave gaps that the KV cache does not fit into.
            jax.config.update("jax_pjrt_client_create_options", {"memory_fraction": gpu_memory_fraction})
    elif not jax.config.jax_platforms:
        jax.config.update("jax_platforms", "cpu")


def _has_driver() -> bool:
    try:
        ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        return False
    return True
