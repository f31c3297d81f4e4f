"""From shapes to programs: what serving and compiling for other machines both go through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.config.windows import group_layers
from jaxserve.errors import ConfigError
from jaxserve.executor.autotune_results import autotune_options
from jaxserve.executor.flat_params import FlatParams
from jaxserve.executor.gpu_options import compiler_options, widened_schemes
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.page_moves import MOVE_WIDTH, make_copy, make_gather, make_scatter
from jaxserve.executor.readers import LOGPROBS_READER, Reader, make_reader
from jaxserve.executor.step import (
    BY_VOCAB,
    EVERYWHERE,
    Candidates,
    ForwardState,
    StateShape,
    abstract_state,
    is_one_cpu,
    make_choose,
    make_forward,
    of_candidates,
)
from jaxserve.models.config import DecoderConfig
from jaxserve.sampling.options import STANDARD, RowOptions
from jaxserve.sampling.state import load_row
from jaxserve.sampling.truncation import Rule
from jaxserve.sampling.variants import Variant, variants_of
from jaxserve.step.batch import DeviceBatch, PackedBatch, RowBatch, make_batch
from jaxserve.step.buckets import Bucket, BucketGrid
from jaxserve.step.example import example_plan
from jaxserve.step.plan import MoveKind
from jaxserve.types import MASK_BITS
from jaxserve.weights.abstract import placed_params
from jaxserve.weights.packed import Packer
from pallas_kernels.matmul import skips_padding
from pallas_kernels.registry import KernelError

NO_OPTIONS: Mapping[str, str] = {}
LOAD_ROW, EXPERT_TOKENS = "load_row", "expert_tokens"
MOVES = {MoveKind.COPY: "copy_pages", MoveKind.TO_TIER: "gather_pages", MoveKind.FROM_TIER: "scatter_pages"}


@dataclass(frozen=True, slots=True, eq=False)
class ProgramSpec:
    """How a program is made.

    Attributes:
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

        Raises ConfigError: a layer was given a kernel that cannot do what is asked of it.
        """
        try:
            lowered = self.function.lower(*self.arguments)
        except KernelError as error:
            named = "attention_kernel, kv_write_kernel or grouped_matmul_kernel"
            raise ConfigError(f"{named}: {error}", param="attention_kernel") from error
        return lowered.compile(compiler_options={**self.options, **extra} or None)


class Lowering:
    """Specs of an engine's programs, from shapes and shardings: the halves of steps, readers, sampling state, page copies.

    Attributes:
        mesh: the devices, which may be of a topology that this machine does not have.
        params, state: jax.ShapeDtypeStructs with shardings.
        compiler_options: XLA's, those for the device.
        row_options: what the words of a row are.
        rules: of which tokens are kept, besides those that there are.
    """

    def __init__(
        self,
        config: DecoderConfig,
        mesh: Mesh,
        options: ExecutorOptions,
        row_options: RowOptions = STANDARD,
        rules: tuple[Rule, ...] = (),
        readers: tuple[Reader, ...] = (LOGPROBS_READER,),
    ) -> None:
        device = mesh.devices.flat[0]
        self.config, self.mesh, self.options = config, mesh, options
        self.row_options, self.rules, self.readers = row_options, rules, readers
        self.params = Packer(config, mesh, options.quantization, options.stored).shapes(
            placed_params(config, mesh, options.dtype)
        )
        self.grid = BucketGrid.for_platform(
            device.platform,
            max_rows=options.max_num_seqs,
            max_tokens=options.max_num_batched_tokens,
            free_padding=any(map(skips_padding, jax.tree.leaves(self.params, is_leaf=skips_padding))),
            max_drafts=options.max_drafts,
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
        self.compiler_options = compiler_options(device, widened_schemes(self.params))
        self._xla = self.compiler_options | autotune_options(device, options.autotune_results)
        by_vocab = NamedSharding(mesh, BY_VOCAB)
        everywhere = NamedSharding(mesh, EVERYWHERE)
        candidates = of_candidates(by_vocab, everywhere)
        self._forward = {
            drafts: jax.jit(self._packed_forward(drafts), donate_argnums=1, out_shardings=(self._placed.forward, candidates))
            for drafts in {0, options.max_drafts}
        }
        chosen = self._placed.choose, everywhere
        self.variants = variants_of(row_options, straight=not is_one_cpu(mesh))
        self._choose = {
            variant: jax.jit(make_choose(config, mesh, variant, rules), donate_argnums=0, out_shardings=chosen)
            for variant in self.variants
        }

    def forward(self, bucket: Bucket) -> ProgramSpec:
        """The first half of a bucket's step: (FlatParams, state, latest, batch) -> (state, candidates)."""
        arguments = (FlatParams.of(self.params), self.state.forward, self.state.choose.latest, self._example(bucket))
        result = (self._placed.forward, self._candidates(bucket.rows, bucket.drafts))
        return ProgramSpec(forward_name(bucket), self._forward[bucket.drafts], arguments, result, self._xla)

    def choose(self, rows: int, variant: Variant, drafts: int = 0) -> ProgramSpec:
        """The second half of the steps of so many rows with such needs: (state, candidates, masks) -> (state, packed)."""
        arguments = (self.state.choose, self._candidates(rows, drafts), self.masks(rows))
        return ProgramSpec(
            choose_name(rows, variant, drafts), self._choose[variant], arguments, (self._placed.choose, 0), self._xla
        )

    def programs(self) -> tuple[ProgramSpec, ...]:
        """All that an engine has."""
        widths = dict.fromkeys((bucket.rows, bucket.drafts) for bucket in self.grid.buckets)
        chooses = (self.choose(rows, variant, drafts) for (rows, drafts), variant in product(widths, self.variants))
        return (*self.others(), *chooses, *map(self.forward, self.grid.buckets))

    def masks(self, rows: int) -> jax.ShapeDtypeStruct:
        """int32[rows,W], for the rows of a step: see `Vocabulary.mask_of`."""
        words = 1 + -(-self.state.choose.sampler.bias.shape[1] // MASK_BITS)
        return jax.ShapeDtypeStruct((rows, words), np.int32, sharding=NamedSharding(self.mesh, EVERYWHERE))

    def _packed_forward(
        self, drafts: int
    ) -> Callable[[FlatParams, ForwardState, jax.Array, PackedBatch], tuple[ForwardState, Candidates]]:
        of_parts, row_options = make_forward(self.config, self.mesh, self.options.kernels, drafts), self.row_options

        def forward(
            params: FlatParams, state: ForwardState, latest: jax.Array, batch: PackedBatch
        ) -> tuple[ForwardState, Candidates]:
            return of_parts(params.tree(), state, latest, batch.unpacked(latest[:, 1], row_options))

        return forward

    def _candidates(self, rows: int, drafts: int) -> Any:
        """Shapes of what is between the halves of a step."""
        columns, width = self.state.choose.sampler.bias.shape[1], 1 + drafts

        def array(shape: tuple[int, ...], dtype: Any, spec: PartitionSpec) -> Any:
            return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, spec))

        by_row = jax.tree.map(lambda leaf: array(leaf.shape, leaf.dtype, EVERYWHERE), self._rows(rows))
        logits: Any = array((rows * width, columns), np.float32, BY_VOCAB)
        return Candidates(logits, array((rows, width), np.int32, EVERYWHERE), by_row)

    def _rows(self, rows: int) -> RowBatch:
        bucket = next(bucket for bucket in self.grid.buckets if bucket.rows == rows)
        batch: DeviceBatch = jax.eval_shape(
            lambda batch, latest: batch.unpacked(latest[:, 1], self.row_options), self._example(bucket), self.state.choose.latest
        )
        return batch.rows

    def others(self) -> tuple[ProgramSpec, ...]:
        """The programs that are not steps: readers by name, LOAD_ROW, EXPERT_TOKENS and MOVES (of swaps only with swap slots)."""
        state, placed = self.state, self._placed
        vocabulary = state.choose.sampler.bias.shape[1]
        row = [np.zeros(vocabulary, dtype) for dtype in (np.int32, np.bool_, np.float32)]
        slot, count = np.zeros((), np.int32), np.zeros((), np.int32)
        hidden, sampler = state.forward.hidden, state.choose.sampler
        tokens = np.zeros(hidden.shape[0], np.int32)
        load: Callable[..., Any] = jax.jit(load_row, donate_argnums=0, out_shardings=placed.choose.sampler)
        read = (self.params, hidden, tokens, tokens, count)
        readers = {reader.name: jax.jit(make_reader(reader, self.config, self.mesh)) for reader in self.readers}
        return (
            *(ProgramSpec(name, program, read, 0, self._xla) for name, program in readers.items()),
            ProgramSpec(LOAD_ROW, load, (sampler, slot, *row), placed.choose.sampler, self._xla),
            *self._moves(),
            ProgramSpec(EXPERT_TOKENS, jax.jit(jnp.copy), (state.forward.expert_tokens,), 0, self._xla),
        )

    def _moves(self) -> Iterator[ProgramSpec]:
        cache, numbers = self.state.forward.cache, np.zeros(MOVE_WIDTH, np.int32)
        in_place = partial(jax.jit, donate_argnums=0, out_shardings=self._placed.forward.cache)
        copy, scatter = in_place(make_copy(self.mesh)), in_place(make_scatter(self.mesh))
        yield ProgramSpec(MOVES[MoveKind.COPY], copy, (cache, numbers, numbers), self._placed.forward.cache, self._xla)
        if self.options.swap_slots:
            pages = jax.tree.map(_moved, cache)
            gather = jax.jit(make_gather(self.mesh), out_shardings=self._placed.forward.cache)
            yield ProgramSpec(MOVES[MoveKind.TO_TIER], gather, (cache, numbers), self._placed.forward.cache, self._xla)
            yield ProgramSpec(MOVES[MoveKind.FROM_TIER], scatter, (cache, pages, numbers), self._placed.forward.cache, self._xla)

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


def _moved(array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The shape of the pages [MOVE_WIDTH,L,...] that one call moves out of an array [L,P,...], or into it."""
    layers, _, *page = array.shape
    return jax.ShapeDtypeStruct((MOVE_WIDTH, layers, *page), array.dtype, sharding=array.sharding)


def forward_name(bucket: Bucket) -> str:
    """The name of the program that is the first half of a bucket's step."""
    return f"forward_{bucket.tokens}x{bucket.rows}{_width(bucket.drafts)}"


def choose_name(rows: int, variant: Variant, drafts: int = 0) -> str:
    """The name of the program that is the second half of the steps of so many rows with such needs."""
    return f"choose_{rows}{_width(drafts)}_{variant.name}"


def _width(drafts: int) -> str:
    return f"x{1 + drafts}" if drafts else ""
