"""The choice between GPU and CPU, made before jax starts its devices."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec

import jax

CUDA_DRIVER = "libcuda.so.1"
CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def choose_platform() -> None:
    """Settle for CPUs where jax's CUDA plugin is installed but the machine has no NVIDIA driver.

    The plugin is part of the development environment, since it also compiles for GPUs that are elsewhere. Left alone, jax would
    log that it cannot start it, with a traceback. A platform that the process has chosen (JAX_PLATFORMS) stays as it is.
    """
    if jax.config.jax_platforms or not any(find_spec(name) for name in CUDA_PLUGINS):
        return
    try:
        ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        jax.config.update("jax_platforms", "cpu")
