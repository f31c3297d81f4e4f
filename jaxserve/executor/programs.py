"""Compiles programs ahead of serving, so that no request ever waits for a compilation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxserve.config.kernels import AUTOMATIC, Kernels
from jaxserve.executor.batch import DeviceBatch
from jaxserve.executor.buckets import Bucket, BucketGrid
from jaxserve.executor.copies import COPY_WIDTH, make_copy
from jaxserve.executor.gpu_options import compiler_options
from jaxserve.executor.lowering import StepLowering
from jaxserve.executor.step import StepState, make_score
from jaxserve.executor.step_programs import StepPrograms
from jaxserve.models.binding import Params
from jaxserve.models.config import DecoderConfig
from jaxserve.sampling.state import load_row

COMPILE_THREADS = 2  # XLA's own compiler threads fill the other cores
SMALL_PROGRAMS = 3  # besides the steps

Progress = Callable[[str, int, int], None]  # what, done, of how many


@dataclass(frozen=True, slots=True)
class Programs:
    """Compiled programs: steps, prompt scoring, loading a slot's sampling state, and copying pages.

    `temporary_bytes` is the largest workspace any of them takes per device.
    """

    steps: StepPrograms
    score: Any
    load_row: Any
    copy_pages: Any
    temporary_bytes: int


def compile_programs(
    config: DecoderConfig,
    mesh: Mesh,
    grid: BucketGrid,
    params: Params,
    state: StepState,
    example: Callable[[Bucket], DeviceBatch],
    progress: Progress,
    kernels: Kernels = AUTOMATIC,
    *,
    first_alone: bool = False,
) -> Programs:
    """Lower and compile from the shapes and shardings of `params` and `state`, several programs at a time.

    Args:
        config: the model.
        mesh: the devices.
        grid: the buckets.
        params: the weights.
        state: the device state, which gives every program its shapes and shardings.
        example: a batch of a bucket's shape.
        progress: told after every program.
        kernels: which implementations the step's layers use.
        first_alone: return when the grid's `first` steps are compiled; a thread compiles the others.
    """
    lowering = StepLowering(config, mesh, params, state, example, kernels)
    now = sorted(grid.first()) if first_alone else grid.buckets
    jobs: dict[Any, Callable[[], Any]] = {bucket: partial(lowering.compile, bucket) for bucket in now}
    jobs |= _small_jobs(config, mesh, lowering)
    done: dict[Any, Any] = {}
    with ThreadPoolExecutor(COMPILE_THREADS) as pool:
        futures = {pool.submit(job): name for name, job in jobs.items()}
        try:
            for future in as_completed(futures):
                done[futures[future]] = future.result()
                progress("compiling", len(done), len(jobs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # do not compile the rest for nobody
            raise
    temporary = max(int(program.memory_analysis().temp_size_in_bytes) for program in done.values())
    score, load_row_compiled, copy_pages = (done.pop(name) for name in ("score", "load_row", "copy_pages"))
    return Programs(StepPrograms(grid, done, lowering.compile), score, load_row_compiled, copy_pages, temporary)


def _small_jobs(config: DecoderConfig, mesh: Mesh, lowering: StepLowering) -> dict[Any, Callable[[], Any]]:
    """What compiles the programs other than steps, by name."""
    params, state, placed = lowering.params, lowering.state, lowering.placed
    options = compiler_options(mesh.devices.flat[0]) or None
    vocabulary = state.sampler.bias.shape[1]
    row = [np.zeros(vocabulary, dtype) for dtype in (np.int32, np.bool_, np.float32)]
    slot, count = np.zeros((), np.int32), np.zeros((), np.int32)
    targets, pages = np.zeros(state.hidden.shape[0], np.int32), np.zeros(COPY_WIDTH, np.int32)
    score = jax.jit(make_score(config, mesh))
    load = jax.jit(load_row, donate_argnums=0, out_shardings=placed.sampler)
    copy = jax.jit(make_copy(mesh), donate_argnums=0, out_shardings=placed.kv_pages)
    return {
        "score": lambda: score.lower(params, state.hidden, targets, count).compile(compiler_options=options),
        "load_row": lambda: load.lower(state.sampler, slot, *row).compile(compiler_options=options),
        "copy_pages": lambda: copy.lower(state.kv_pages, pages, pages).compile(compiler_options=options),
    }
