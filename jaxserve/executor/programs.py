"""Compiles every program ahead of serving, so that no request ever waits for a compilation."""

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
from jaxserve.executor.step import StepState, make_score, make_step
from jaxserve.models.binding import Params
from jaxserve.models.config import DecoderConfig
from jaxserve.sampling.state import load_row

COMPILE_THREADS = 2  # XLA's own compiler threads fill the other cores

Progress = Callable[[str, int, int], None]  # what, done, of how many


@dataclass(frozen=True, slots=True)
class Programs:
    """Compiled programs: a step per bucket, prompt scoring, loading a slot's sampling state, and copying pages.

    `temporary_bytes` is the largest workspace any of them takes per device.
    """

    steps: dict[Bucket, Any]
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
) -> Programs:
    """Lower and compile everything from the shapes and shardings of `params` and `state`.

    Args:
        config: the model.
        mesh: the devices.
        grid: the buckets.
        params: the weights.
        state: the device state, which gives every program its shapes and shardings.
        example: a batch of a bucket's shape.
        progress: told after every program.
        kernels: which implementations the step's layers use.
    """
    placed = jax.tree.map(lambda array: array.sharding, state)
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding), (params, state))
    params, state = shapes
    step = jax.jit(make_step(config, mesh, kernels), donate_argnums=1, out_shardings=(placed, None))
    vocabulary = state.sampler.bias.shape[1]
    row = [np.zeros(vocabulary, dtype) for dtype in (np.int32, np.bool_, np.float32)]
    slot, count = np.zeros((), np.int32), np.zeros((), np.int32)
    targets = np.zeros(state.hidden.shape[0], np.int32)

    def compile_step(bucket: Bucket) -> Any:
        return step.lower(params, state, example(bucket)).compile()

    jobs: dict[Any, Callable[[], Any]] = {bucket: partial(compile_step, bucket) for bucket in grid.buckets}
    jobs["score"] = lambda: jax.jit(make_score(config, mesh)).lower(params, state.hidden, targets, count).compile()
    load = jax.jit(load_row, donate_argnums=0, out_shardings=placed.sampler)
    jobs["load_row"] = lambda: load.lower(state.sampler, slot, *row).compile()
    copy, pages = jax.jit(make_copy(mesh), donate_argnums=0, out_shardings=placed.kv_pages), np.zeros(COPY_WIDTH, np.int32)
    jobs["copy_pages"] = lambda: copy.lower(state.kv_pages, pages, pages).compile()
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
    return Programs(done, score, load_row_compiled, copy_pages, temporary)
