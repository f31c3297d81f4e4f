"""Loads the native library if it is there."""

from __future__ import annotations

import ctypes
import logging
from functools import cache

import jax

from pallas_kernels.native.library import digest, functions, library_path
from pallas_kernels.registry import Target

logger = logging.getLogger(__name__)


@cache
def missing() -> str | None:
    """Say why there are no native kernels in this process, or None if there are.

    The first call loads the library, registers its functions with XLA, and logs what CPUs compute with; nothing is compiled.
    """
    reason = _load()
    logger.info("CPUs compute with %s", "native kernels" if reason is None else f"XLA alone: {reason}")
    return reason


def _load() -> str | None:
    path = library_path()
    if not path.is_file():
        return "the native library is not built (python -m pallas_kernels.native builds it)"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"the native library cannot be loaded: {error}"
    for function in functions():
        jax.ffi.register_ffi_target(_registered(function), jax.ffi.pycapsule(getattr(library, function)), platform="cpu")
    return None


def target_name(function: str) -> str:
    """What XLA knows a function of the library by. It changes with the library, so that no cached program calls another one.

    Raises:
        RuntimeError: there is no library; see `missing`.
    """
    if (reason := missing()) is not None:
        raise RuntimeError(reason)
    return _registered(function)


def _registered(function: str) -> str:
    return f"jaxserve_{function}_{digest()}"


def runs_on(target: Target) -> str | None:
    """Say why native kernels do not run on a device, or None if they do."""
    return f"it needs a CPU, not {target}" if target.platform != "cpu" else missing()
