"""What XLA measured of kernels on a GPU, kept in a directory: for the next start, and for compiling where there is no GPU.

A file for each kernel and kind of GPU, which XLA writes whole. It finds them by the GPU's name and figures (targets.toml has
those that the driver states) and by its own version and that of its libraries; what does not fit is not taken.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import jax

from jaxserve.errors import ConfigError
from jaxserve.executor.gpu_options import is_gpu

NAME = "autotune_results"
"""The setting, and the folder beside saved programs."""
_DIRECTORY, _MODE = "xla_gpu_per_fusion_autotune_cache_dir", "xla_gpu_experimental_autotune_cache_mode"


def autotune_options(device: jax.Device, results: Path | None, *, adds: bool = True) -> dict[str, str]:
    """XLA's options: take what is in the directory, if there is one, and add what is measured now; none for CPUs.

    A directory and not one of XLA's files with all results: of those a process reads one, once, and threads write it at once. And
    jax's cache of compiled programs would ask for the same file again.
    """
    if results is None or not is_gpu(device):
        return {}
    return {_DIRECTORY: str(results)} if adds else {_DIRECTORY: str(results), _MODE: "AUTOTUNE_CACHE_MODE_READ"}


def make_results(results: Path | None) -> None:
    """Make the directory if it is not there. Raises ConfigError: it cannot be made."""
    try:
        if results is not None:
            results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{NAME}: cannot make {results}: {error.strerror}", param=NAME) from error


def require_results(results: Path | None) -> None:
    """Raise ConfigError if a directory is named that is not there."""
    if results is not None and not results.is_dir():
        raise ConfigError(f"{NAME}: there is no directory {results}", param=NAME)


def save_results(results: Path | None, programs: Path) -> None:
    """Put what is known beside programs that are saved, for those that have to be compiled anew. Raises OSError."""
    if results is not None:
        shutil.copytree(results, programs / NAME, dirs_exist_ok=True)


def saved_results(programs: Path) -> Path | None:
    """What lies beside saved programs; None if nothing does."""
    results = programs / NAME
    return results if results.is_dir() else None
