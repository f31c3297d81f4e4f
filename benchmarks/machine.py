"""What machine a benchmark ran on, and what it can do: the bounds that results are held against."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxserve.executor.platform import choose_platform


def describe() -> dict[str, Any]:
    """Date, CPU, cores and versions."""
    choose_platform()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "platform": jax.devices()[0].platform,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("jax", "jaxlib", "flax", "numpy")},
    }


def command(module: str) -> str:
    """This process's command as it is written down."""
    return " ".join([f"python -m {module}", *without_places(sys.argv[1:])])


def without_places(words: Sequence[str]) -> list[str]:
    """Words of a command with the last part of paths only: those of this machine tell others nothing."""
    return [Path(word).name if word.startswith("/") else word for word in words]


def read_bandwidth() -> float:
    """Bytes a second that a jitted sum reads from 1 GiB of float32."""
    array = jnp.ones((2**28,), jnp.float32)
    return array.nbytes / _best(jax.jit(jnp.sum), array)


def matmul_rate(dtype: str) -> float:
    """FLOPs a second of [512,4096] x [4096,4096] with float32 results."""
    left, right = jnp.ones((512, 4096), dtype), jnp.ones((4096, 4096), dtype)
    dot = jax.jit(lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32))
    return 2 * 512 * 4096 * 4096 / _best(dot, left, right)


def memory_bytes() -> int:
    """Bytes that a device can give: of a GPU what XLA may take of it, of a host its memory."""
    if (stats := jax.devices()[0].memory_stats()) and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def median(values: list[float]) -> float:
    """The median, as floats for JSON."""
    return float(statistics.median(values))


def _best(function: Callable[..., jax.Array], *arguments: jax.Array) -> float:
    """Seconds of the fastest of nine calls: the bound, not the average."""
    function(*arguments).block_until_ready()
    times = []
    for _ in range(9):
        start = time.perf_counter()
        function(*arguments).block_until_ready()
        times.append(time.perf_counter() - start)
    return min(times)


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
