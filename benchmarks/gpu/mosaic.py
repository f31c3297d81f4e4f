"""One small call of a Mosaic kernel: whether such kernels are compiled and run here at all, before anything else is tried."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

import jax

from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.tasks import Figure, Task
from pallas_kernels.parity.cases import AttentionCase
from pallas_kernels.parity.gate import check_attention
from pallas_kernels.registry import Target

CASE = AttentionCase("three rows", ((1, 40), (1, 17), (1, 3)), tokens=3)


def tasks(sizes: Sizes) -> Iterator[Task]:
    """Decode attention of three rows, against its reference."""
    kernels = [kernel for kernel in sizes.kernels if kernel.startswith("mosaic_gpu")]
    if not kernels:
        yield Task({}, lambda: {"skipped": "its kernels are not run"})
    for kernel in kernels:
        yield Task({"implementation": kernel}, partial(call, kernel))


def call(kernel: str) -> Figure:
    """Compile, run and judge. Raises RuntimeError where the result is wrong or the kernel cannot be compiled."""
    start = time.perf_counter()
    result = check_attention(CASE, "bfloat16", kernel, Target.of(jax.devices()[0]))
    if result.verdict != "pass":
        raise RuntimeError(f"{result.verdict}: {result.reason}")
    return asdict(result) | {"seconds": time.perf_counter() - start}
