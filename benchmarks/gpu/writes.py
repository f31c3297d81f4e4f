"""kv_write: one step's keys and values into pages, in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.cases import cache_shape, writes
from benchmarks.gpu.pages import random_array
from benchmarks.gpu.programs import Program, compile_all, facts
from benchmarks.gpu.sizes import PAGE_SIZE, Sizes
from benchmarks.gpu.tasks import Figure, Task
from benchmarks.gpu.timing import time_calls
from pallas_kernels.registry import Target


def tasks(sizes: Sizes) -> Iterator[Task]:
    """Compile everything, then time it."""
    device = jax.devices()[0]
    programs = list(writes(sizes, Target.of(device)))
    for program, future in zip(programs, compile_all(programs, device), strict=True):
        yield Task(program.labels, _timed(sizes, program, future.result))


def _timed(sizes: Sizes, program: Program, compiled: Callable[[], jax.stages.Compiled]) -> Callable[[], Figure]:
    def measure() -> Figure:
        run, tokens = compiled(), program.labels["tokens"]
        cache = random_array(cache_shape(sizes.heads, sizes.write_pages))
        k, v = (random_array(shape) for shape in program.shapes[1:3])
        rng = np.random.default_rng(0)
        free = (sizes.write_pages - 1) * PAGE_SIZE
        slots = [rng.choice(free, tokens, replace=False) + PAGE_SIZE for _ in range(sizes.operations)]
        places = [jnp.asarray(each, jnp.int32) for each in slots]
        timing, _ = time_calls(lambda _, cache: run(cache, k, v, *places), cache, sizes.pace, operations=sizes.operations)
        return timing | {"bytes": 2 * tokens * sizes.heads.token_bytes} | facts(run)  # read and written

    return measure
