"""What every Mosaic GPU kernel runs on; asked before a kernel is imported."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from pallas_kernels.registry import Implementation, Target, everything

CAPABILITY = (9, 0)
OLDEST_JAX = (0, 11, 2)
CHECKED = "run on an H200 in bfloat16, against float64"


def implementations(
    function: Callable[..., Any],
    limits: str,
    supports: Callable[[Any], str | None],
    *,
    interpreted: str,
    suits: Callable[[Any], str | None] = everything,
) -> tuple[Implementation[Any, Any], Implementation[Any, Any]]:
    """The entries of an operation's Mosaic GPU kernel: compiled, and interpreted on CPUs.

    Args:
        function: takes the operation's arguments, and `interpret`.
        limits: see Implementation.
        supports: likewise.
        interpreted: how much of it is checked when it is interpreted, for people.
        suits: see Implementation.
    """
    slow = partial(function, interpret=True)
    return (
        Implementation("mosaic_gpu", function, limits, CHECKED, runs_on, supports, suits),
        Implementation("mosaic_gpu_interpreted", slow, limits, interpreted, interpreted_on, supports, interpreted=True),
    )


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
