"""From shapes to programs: what serving and compiling for other machines both go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxserve.config.windows import group_layers
from jaxserve.errors import ConfigError
from jaxserve.executor.copies import COPY_WIDTH, make_copy
from jaxserve.executor.flat_params import FlatParams
from jaxserve.executor.gpu_options import compiler_options
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.step import StateShape, StepState, abstract_state, make_score, make_step
from jaxserve.models.config import DecoderConfig
from jaxserve.sampling.options import STANDARD, RowOptions
from jaxserve.sampling.state import load_row
from jaxserve.sampling.truncation import Rule
from jaxserve.step.batch import PackedBatch, make_batch
from jaxserve.step.buckets import Bucket, BucketGrid
from jaxserve.step.example import example_plan
from jaxserve.weights.abstract import placed_params
from jaxserve.weights.packed import Packer
from pallas_kernels.matmul import PackedMatrix
from pallas_kernels.registry import KernelError

NO_OPTIONS: Mapping[str, str] = {}
SCORE, LOAD_ROW, COPY_PAGES, EXPERT_TOKENS = "score", "load_row", "copy_pages", "expert_tokens"


@dataclass(frozen=True, slots=True, eq=False)
class ProgramSpec:
    """How a program is made.

    Attributes:
        name: of the program, among those of an engine.
        function: what is compiled (jax.jit's result).
        arguments: shapes of what it takes.
        result: a tree of the structure that it returns.
        options: XLA's.
    """

    name: str
    function: Any
    arguments: tuple[Any, ...]
    result: Any
    options: Mapping[str, str]

    def compile(self, extra: Mapping[str, str] = NO_OPTIONS) -> Any:
        """The program (jax.stages.Compiled); `extra` are more of XLA's options.

        Raises:
            ConfigError: a layer was given a kernel that cannot do what is asked of it.
        """
        try:
            lowered = self.function.lower(*self.arguments)
        except KernelError as error:
            named = "attention_kernel, kv_write_kernel or grouped_matmul_kernel"
            raise ConfigError(f"{named}: {error}", param="attention_kernel") from error
        return lowered.compile(compiler_options={**self.options, **extra} or None)


class Lowering:
    """Specs of an engine's programs, from shapes and shardings: steps by bucket, prompt scoring, sampling state, page copies.

    Attributes:
        config: the model.
        mesh: the devices, which may be of a topology that this machine does not have.
        options: the engine's shapes.
        grid: buckets of the steps.
        params, state: jax.ShapeDtypeStructs with shardings.
        row_options: what the words of a row are.
    """

    def __init__(
        self,
        config: DecoderConfig,
        mesh: Mesh,
        options: ExecutorOptions,
        row_options: RowOptions = STANDARD,
        rules: tuple[Rule, ...] = (),
    ) -> None:
        device = mesh.devices.flat[0]
        self.config, self.mesh, self.options, self.row_options = config, mesh, options, row_options
        self.params = Packer(config, mesh, options.quantization).shapes(placed_params(config, mesh, options.dtype))
        self.grid = BucketGrid.for_platform(
            device.platform,
            max_rows=options.max_num_seqs,
            max_tokens=options.max_num_batched_tokens,
            free_padding=_holds_packed(self.params),
        )
        shape = StateShape(
            slots=options.max_num_seqs,
            num_pages=options.num_pages,
            page_size=options.page_size,
            max_tokens=self.grid.max_tokens,
            kv_dtype=options.kv_dtype,
            dtype=options.dtype,
        )
        self.state = abstract_state(config, mesh, shape)
        self._placed = jax.tree.map(lambda array: array.sharding, self.state)
        self._xla = compiler_options(device)
        of_parts = make_step(config, mesh, options.kernels, rules)

        def step(params: FlatParams, state: StepState, batch: PackedBatch) -> tuple[StepState, jax.Array]:
            return of_parts(params.tree(), state, batch.unpacked(row_options))

        self._step = jax.jit(step, donate_argnums=1, out_shardings=(self._placed, None))

    def step(self, bucket: Bucket) -> ProgramSpec:
        """The step of a bucket: (FlatParams, state, batch) -> (state, packed)."""
        arguments = (FlatParams.of(self.params), self.state, self._example(bucket))
        return ProgramSpec(step_name(bucket), self._step, arguments, (self._placed, 0), self._xla)

    def others(self) -> tuple[ProgramSpec, ...]:
        """The programs that are not steps: SCORE, LOAD_ROW, COPY_PAGES and EXPERT_TOKENS."""
        state, placed = self.state, self._placed
        vocabulary = state.sampler.bias.shape[1]
        row = [np.zeros(vocabulary, dtype) for dtype in (np.int32, np.bool_, np.float32)]
        slot, count = np.zeros((), np.int32), np.zeros((), np.int32)
        tokens, pages = np.zeros(state.hidden.shape[0], np.int32), np.zeros(COPY_WIDTH, np.int32)
        score = jax.jit(make_score(self.config, self.mesh))
        load: Callable[..., Any] = jax.jit(load_row, donate_argnums=0, out_shardings=placed.sampler)
        copy = jax.jit(make_copy(self.mesh), donate_argnums=0, out_shardings=placed.kv_pages)
        return (
            ProgramSpec(SCORE, score, (self.params, state.hidden, tokens, tokens, count), 0, self._xla),
            ProgramSpec(LOAD_ROW, load, (state.sampler, slot, *row), placed.sampler, self._xla),
            ProgramSpec(COPY_PAGES, copy, (state.kv_pages, pages, pages), 0, self._xla),
            ProgramSpec(EXPERT_TOKENS, jax.jit(jnp.copy), (state.expert_tokens,), 0, self._xla),
        )

    def _example(self, bucket: Bucket) -> PackedBatch:
        """A batch of the bucket's shape, made as every batch is: one row with one token."""
        options, groups = self.options, len(group_layers(self.config.windows).windows)
        return make_batch(
            example_plan(([0], 1, [0] * groups), options=self.row_options),
            bucket,
            max_pages=options.max_pages,
            page_size=options.page_size,
            spare_slot=options.max_num_seqs,
            groups=groups,
            options=self.row_options,
        )


def _holds_packed(params: Any) -> bool:
    """Whether matrices are packed for native kernels, which multiply no padding."""
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, PackedMatrix))
    return any(isinstance(leaf, PackedMatrix) for leaf in leaves)


def step_name(bucket: Bucket) -> str:
    """The name of a step's program."""
    return f"step_{bucket.tokens}x{bucket.rows}"
