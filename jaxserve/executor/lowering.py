"""From shapes to the step's program: the one function that serving and compiling for other machines both go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxserve.config.kernels import Kernels
from jaxserve.executor.batch import DeviceBatch, make_batch
from jaxserve.executor.buckets import Bucket
from jaxserve.executor.gpu_options import compiler_options
from jaxserve.executor.step import StepState, make_step
from jaxserve.models.binding import Params
from jaxserve.models.config import DecoderConfig
from jaxserve.scheduler.plan import SUPPRESS_WIDTH, Plan, SamplingRows

NO_OPTIONS: Mapping[str, str] = {}


class StepLowering:
    """Lowers and compiles the step of a bucket from shapes and shardings.

    Args:
        config: the model.
        mesh: the devices, which may be of a topology that this machine does not have.
        params, state: arrays, or jax.ShapeDtypeStructs with shardings in their place.
        example: a batch of a bucket's shape.
        kernels: which implementations the step's layers use.
    """

    def __init__(
        self,
        config: DecoderConfig,
        mesh: Mesh,
        params: Params,
        state: StepState,
        example: Callable[[Bucket], DeviceBatch],
        kernels: Kernels,
    ) -> None:
        self.params, self.state = jax.tree.map(_shape, (params, state))
        self.placed: StepState = jax.tree.map(lambda array: array.sharding, state)
        self._example = example
        self._options = compiler_options(mesh.devices.flat[0])
        self._step = jax.jit(make_step(config, mesh, kernels), donate_argnums=1, out_shardings=(self.placed, None))

    def compile(self, bucket: Bucket, extra: Mapping[str, str] = NO_OPTIONS) -> Any:
        """The program (jax.stages.Compiled); `extra` are more of XLA's options."""
        options = {**self._options, **extra}
        return self._step.lower(self.params, self.state, self._example(bucket)).compile(compiler_options=options or None)


def example_batch(bucket: Bucket, *, max_pages: int, page_size: int, spare_slot: int) -> DeviceBatch:
    """A batch of the bucket's shape, made as every batch is: one row with one token."""
    return make_batch(_example_plan(), bucket, max_pages=max_pages, page_size=page_size, spare_slot=spare_slot)


def _shape(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


def _example_plan() -> Plan:
    """One greedy row that decodes its first token."""
    numbers = {name: np.zeros(1, np.float32) for name in ("temperature", "min_p", "presence", "frequency", "repetition", "top_p")}
    sampling = SamplingRows(
        top_k=np.zeros(1, np.int32),
        key=np.zeros((1, 2), np.uint32),
        suppress=np.full((1, SUPPRESS_WIDTH), -1, np.int32),
        num_logprobs=np.full(1, -1, np.int32),
        has_bias=np.zeros(1, np.bool_),
        **numbers,
    )
    one = np.ones(1, np.int32)
    return Plan(
        step=0,
        ids=("example",),
        slots=np.zeros(1, np.int32),
        tokens=np.zeros(1, np.int32),
        query_start=np.array([0, 1], np.int32),
        kv_length=one,
        page_table=np.zeros((1, 1), np.int32),
        samples=np.ones(1, np.bool_),
        sampling=sampling,
    )
