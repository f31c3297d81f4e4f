"""Loads the native library, which is built first where it is not there and can be."""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

import jax

from pallas_kernels.native.build import BuildError, NoCompilerError, provide
from pallas_kernels.native.library import digest, functions, libraries
from pallas_kernels.native.self_test import SelfTestError, failure
from pallas_kernels.registry import Target

logger = logging.getLogger(__name__)


@cache
def missing() -> str | None:
    """Say why there are no native kernels in this process, or None if there are.

    The first call loads the library, registers its functions with XLA, and logs what CPUs compute with. It takes as long as
    the compiler does, some seconds, where no library was built yet.
    """
    reason = _load()
    logger.info("CPUs compute with %s", "native kernels" if reason is None else f"XLA alone: {reason}")
    return reason


def _load() -> str | None:
    """Say why there is no library; its functions are registered if there is one."""
    broken: dict[Path, OSError] = {}
    try:
        library = _first_that_loads(broken)
        if library is None:
            logger.info("native kernels are compiled, which takes some seconds; the next start finds them")
            library = _tested(provide(broken))
    except NoCompilerError as error:
        cannot = [f"the native library cannot be loaded: {reason}" for reason in broken.values()]
        return cannot[0] if cannot else f"the native library is not built: {error}"
    except BuildError as error:
        why, _, details = str(error).partition("\n")
        logger.warning("native kernels: %s\n%s", why, details)
        return f"the native library is not built: {why}"
    except SelfTestError as error:
        logger.warning(
            "native kernels are disabled: %s. XLA computes instead, about two times slower. Delete that file and run "
            "`python -m pallas_kernels.native` to compile the library on this machine; if its self-test fails again, report this "
            "line with the CPU's model and flags (/proc/cpuinfo)",
            error,
        )
        return f"the native library is not used: {error}"
    except OSError as error:
        return f"the native library cannot be loaded: {error}"
    for function in functions():
        jax.ffi.register_ffi_target(_registered(function), jax.ffi.pycapsule(getattr(library, function)), platform="cpu")
    return None


def _tested(path: Path) -> ctypes.CDLL:
    """Load a library that passes its self-test in a child process.

    Raises:
        SelfTestError: it must not be used on this CPU.
        OSError: it cannot be loaded.
    """
    if (reason := failure(path)) is not None:
        raise SelfTestError(f"{path}: {reason}")
    return ctypes.CDLL(str(path))


def _first_that_loads(broken: dict[Path, OSError]) -> ctypes.CDLL | None:
    """Of the files that are there; those that another system's compiler made, for one, may not load: they go to `broken`."""
    for path in libraries():
        try:
            return _tested(path)
        except OSError as error:
            broken[path] = error
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
