"""What every Mosaic GPU kernel runs on; asked before a kernel is imported."""

from __future__ import annotations

import jax

from pallas_kernels.registry import Target

CAPABILITY = (9, 0)
OLDEST_JAX = (0, 11, 2)


def runs_on(target: Target) -> str | None:
    """Say why the compiled kernels do not run on a device, or None if they do."""
    if target.platform != "gpu" or target.capability != CAPABILITY:
        return f"it needs a GPU of compute capability 9.0, not {target}"
    return _old_jax()


def interpreted_on(target: Target) -> str | None:
    """Say why the kernels cannot be interpreted on a device, or None if they can."""
    if target.platform != "cpu":
        return f"kernels are interpreted on CPUs, not on {target}"
    return _old_jax()


def _old_jax() -> str | None:
    if jax.__version_info__ < OLDEST_JAX:
        return f"it needs jax 0.11.2 or newer, not {jax.__version__}"
    return None
