"""From shapes to programs: what serving and compiling for other machines both go through."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.executor.autotune_results import autotune_options
from jaxserve.executor.draft_specs import DraftSpecs
from jaxserve.executor.draft_step import DraftModel, Handed
from jaxserve.executor.flat_params import FlatParams
from jaxserve.executor.gpu_options import compiler_options, is_gpu, matmul_precision, widened_schemes
from jaxserve.executor.invariance import invariant_kernels, invariant_options, require_invariant
from jaxserve.executor.lora import PUT_ADAPTER, abstract_loras, adapter_size, put_adapter
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.program_spec import ProgramSpec, move_specs
from jaxserve.executor.readers import LOGPROBS_READER, Reader, make_reader
from jaxserve.executor.routed_experts import ROUTED_EXPERTS, RoutedLayout, make_read_routed
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
from jaxserve.models.adapted import Loras
from jaxserve.models.config import DecoderConfig
from jaxserve.sampling.options import STANDARD, RowOptions
from jaxserve.sampling.state import load_row
from jaxserve.sampling.truncation import Rule
from jaxserve.sampling.variants import Variant, variants_of
from jaxserve.step.batch import DeviceBatch, PackedBatch, make_batch
from jaxserve.step.buckets import Bucket, BucketGrid
from jaxserve.step.example import example_plan
from jaxserve.step.page_tables import PageTables, put_table
from jaxserve.types import MASK_BITS
from jaxserve.weights.abstract import placed_params
from jaxserve.weights.packed import Packer
from pallas_kernels.matmul import skips_padding

LOAD_ROW, PUT_TABLE, EXPERT_TOKENS = "load_row", "put_table", "expert_tokens"


class Lowering:
    """Specs of an engine's programs, from shapes and shardings: the halves of steps, readers, sampling state, page copies.

    Attributes:
        mesh: the devices, which may be of a topology that this machine does not have.
        params, state: jax.ShapeDtypeStructs with shardings.
        compiler_options: XLA's, those for the device.
        kernels: what computes the layers.
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
        draft: DraftModel | None = None,
    ) -> None:
        device = mesh.devices.flat[0]
        self.config, self.mesh, self.options = config, mesh, options
        self.row_options, self.rules, self.readers = row_options, rules, readers
        self.params = Packer(config, mesh, options.quantization, options.stored).shapes(
            placed_params(config, mesh, options.dtype)
        )
        if options.deterministic:
            require_invariant(config, mesh, options)
        self.kernels = invariant_kernels(options.kernels, device) if options.deterministic else options.kernels
        self.grid = self._grid(device)
        shape = StateShape(
            slots=options.max_num_seqs,
            num_pages=options.num_pages,
            page_size=options.page_size,
            max_pages=options.max_pages,
            max_tokens=self.grid.max_tokens,
            kv_dtype=options.kv_dtype,
            dtype=options.dtype,
            guesses=0 if draft is None else draft.guesses,
            routed_experts=options.routed_experts,
            state_places=0 if options.states is None else options.states.count,
        )
        self.state = abstract_state(config, mesh, shape)
        self._placed = jax.tree.map(lambda array: array.sharding, self.state)
        self.compiler_options = compiler_options(device, widened_schemes(self.params))
        invariant = invariant_options(device) if options.deterministic else {}
        self._xla = self.compiler_options | invariant | autotune_options(device, options.autotune_results)
        self._precision = matmul_precision(device, options.dtype)
        self.draft = None if draft is None else DraftSpecs(draft, mesh, options, row_options, self.state, self._xla)
        by_vocab = NamedSharding(mesh, BY_VOCAB)
        everywhere = NamedSharding(mesh, EVERYWHERE)
        made = self._placed.forward, of_candidates(by_vocab, everywhere), None if draft is None else everywhere
        self._forward = {
            drafts: jax.jit(self._packed_forward(drafts), donate_argnums=1, out_shardings=made)
            for drafts in {0, options.max_drafts}
        }
        self.loras = None
        if options.adapters is not None:
            self.loras = abstract_loras(config, mesh, options.dtype, options.adapters)
        chosen = self._placed.choose, everywhere
        # Where the fewest programs are wanted, one chooses for every mix of rows on several CPU devices, too.
        asks = is_one_cpu(mesh) or (options.fewest_shapes and device.platform == "cpu")
        self.variants = variants_of(row_options, straight=not asks)
        self._choose = {
            variant: jax.jit(make_choose(config, mesh, variant, rules), donate_argnums=0, out_shardings=chosen)
            for variant in self.variants
        }

    def _grid(self, device: jax.Device) -> BucketGrid:
        grid = self._bare_grid(device)
        return grid if self.options.adapters is None else grid.with_adapters()

    def _bare_grid(self, device: jax.Device) -> BucketGrid:
        options = self.options
        if options.deterministic and is_gpu(device):
            return BucketGrid.of_one(max_rows=options.max_num_seqs, max_tokens=options.max_num_batched_tokens)
        return BucketGrid.for_platform(
            device.platform,
            max_rows=options.max_num_seqs,
            max_tokens=options.max_num_batched_tokens,
            free_padding=any(map(skips_padding, jax.tree.leaves(self.params, is_leaf=skips_padding))),
            fewest=options.fewest_shapes,
            max_drafts=options.max_drafts,
        )

    def forward(self, bucket: Bucket) -> ProgramSpec:
        """The first half of a bucket's step: (FlatParams, state, latest, batch, loras) -> (state, candidates, batch)."""
        loras = FlatParams.of(self.loras) if bucket.adapted and self.loras is not None else None
        arguments = (FlatParams.of(self.params), self.state.forward, self.state.choose.latest, self._example(bucket), loras)
        handed = None if self.draft is None else self._handed(bucket)
        result = (self._placed.forward, self._candidates(bucket.rows, bucket.drafts), handed)
        program = self._forward[bucket.drafts]
        return ProgramSpec(forward_name(bucket), program, arguments, result, self._xla, self._precision)

    def choose(self, rows: int, variant: Variant, drafts: int = 0) -> ProgramSpec:
        """The second half of the steps of so many rows with such needs: (state, candidates, masks) -> (state, packed)."""
        arguments = (self.state.choose, self._candidates(rows, drafts), self.masks(rows, drafts))
        return ProgramSpec(
            choose_name(rows, variant, drafts), self._choose[variant], arguments, (self._placed.choose, 0), self._xla
        )

    def drafting(self, buckets: Iterable[Bucket]) -> tuple[ProgramSpec, ...]:
        """What a draft model does behind the steps of these buckets; nothing without one."""
        if self.draft is None:
            return ()
        specs = [self.draft.follow(bucket, self._handed(bucket)) for bucket in buckets]
        specs += [self.draft.guess(self._batch(bucket)) for bucket in buckets]
        return tuple({spec.name: spec for spec in specs}.values())

    def programs(self) -> tuple[ProgramSpec, ...]:
        """All that an engine has."""
        widths = dict.fromkeys((bucket.rows, bucket.drafts) for bucket in self.grid.buckets)
        chooses = (self.choose(rows, variant, drafts) for (rows, drafts), variant in product(widths, self.variants))
        return (*self.others(), *chooses, *map(self.forward, self.grid.buckets), *self.drafting(self.grid.buckets))

    def masks(self, rows: int, drafts: int = 0) -> jax.ShapeDtypeStruct:
        """int32[rows*N,W], for every token that the rows of a step may choose: see `Vocabulary.mask_of`."""
        words = 1 + -(-self.state.choose.sampler.bias.shape[1] // MASK_BITS)
        return jax.ShapeDtypeStruct((rows * (1 + drafts), words), np.int32, sharding=NamedSharding(self.mesh, EVERYWHERE))

    def _packed_forward(
        self, drafts: int
    ) -> Callable[
        [FlatParams, ForwardState, jax.Array, PackedBatch, FlatParams | None], tuple[ForwardState, Candidates, Handed | None]
    ]:
        draft, row_options = self.draft, self.row_options
        of_parts = make_forward(self.config, self.mesh, self.kernels, drafts, () if draft is None else draft.model.taps)

        def forward(
            params: FlatParams, state: ForwardState, latest: jax.Array, batch: PackedBatch, loras: FlatParams | None
        ) -> tuple[ForwardState, Candidates, Handed | None]:
            adapters: Loras | None = None if loras is None else loras.tree()
            state = replace(state, page_tables=batch.changed(state.page_tables))
            unpacked = batch.unpacked(latest[:, 1], state.page_tables, row_options)
            state, candidates, handed = of_parts(params.tree(), state, latest, unpacked, adapters)
            return state, candidates, None if draft is None else Handed(*handed)

        return forward

    def _candidates(self, rows: int, drafts: int) -> Any:
        """Shapes of what is between the halves of a step."""
        columns, width = self.state.choose.sampler.bias.shape[1], 1 + drafts

        def array(shape: tuple[int, ...], dtype: Any, spec: PartitionSpec) -> Any:
            return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, spec))

        by_row = self._batch(self._bucket_of(rows)).rows
        logits: Any = array((rows * width, columns), np.float32, BY_VOCAB)
        return Candidates(logits, array((rows, width), np.int32, EVERYWHERE), by_row)

    def _bucket_of(self, rows: int) -> Bucket:
        return next(bucket for bucket in self.grid.buckets if bucket.rows == rows)

    def _batch(self, bucket: Bucket) -> DeviceBatch:
        """Shapes of a bucket's batch."""
        everywhere = NamedSharding(self.mesh, EVERYWHERE)
        batch = jax.eval_shape(
            lambda batch, latest, tables: batch.unpacked(latest[:, 1], tables, self.row_options),
            self._example(bucket),
            self.state.choose.latest,
            self.state.forward.page_tables,
        )
        shapes: DeviceBatch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere), batch)
        return shapes

    def _handed(self, bucket: Bucket) -> Handed:
        """Shapes of what the target hands on to a draft model."""
        assert self.draft is not None
        width = len(self.draft.model.taps) * self.config.hidden_size
        shape = (bucket.tokens, width), np.dtype(self.options.dtype)
        tapped: Any = jax.ShapeDtypeStruct(*shape, sharding=NamedSharding(self.mesh, EVERYWHERE)) if width else None
        return Handed(self._batch(bucket), tapped)

    def others(self) -> tuple[ProgramSpec, ...]:
        """The programs that are not steps: readers by name, LOAD_ROW, PUT_TABLE, EXPERT_TOKENS, MOVES (of swaps only with swap
        slots), ROUTED_EXPERTS where pages keep them, and PUT_ADAPTER where there are slots.
        """
        state, placed = self.state, self._placed
        vocabulary = state.choose.sampler.bias.shape[1]
        row = [np.zeros(vocabulary, dtype) for dtype in (np.int32, np.bool_, np.float32)]
        slot, count = np.zeros((), np.int32), np.zeros((), np.int32)
        hidden, sampler = state.forward.hidden, state.choose.sampler
        tokens = np.zeros(hidden.shape[0], np.int32)
        load: Callable[..., Any] = jax.jit(load_row, donate_argnums=0, out_shardings=placed.choose.sampler)
        read = (self.params, hidden, tokens, tokens, count)
        readers = {
            reader.name: jax.jit(make_reader(reader, self.config, self.mesh, self.options.max_num_seqs))
            for reader in self.readers
        }
        return (
            *(ProgramSpec(name, program, read, 0, self._xla, self._precision) for name, program in readers.items()),
            *(() if self.draft is None else self.draft.moves()),
            ProgramSpec(LOAD_ROW, load, (sampler, slot, *row), placed.choose.sampler, self._xla),
            self._put_table(),
            *move_specs(state.forward.cache, self.mesh, swaps=self.options.swap_slots > 0, xla=self._xla),
            ProgramSpec(EXPERT_TOKENS, jax.jit(jnp.copy), (state.forward.expert_tokens,), 0, self._xla),
            *self._routed_experts(),
            *self._put_adapter(),
        )

    def _put_table(self) -> ProgramSpec:
        tables, placed = self.state.forward.page_tables, self._placed.forward.page_tables
        put = jax.jit(put_table, donate_argnums=0, out_shardings=placed)
        groups, _, pages = tables.shape
        return ProgramSpec(
            PUT_TABLE, put, (tables, np.zeros((), np.int32), np.zeros((groups, pages), np.int32)), placed, self._xla
        )

    def _routed_experts(self) -> Iterator[ProgramSpec]:
        routed = self.state.forward.cache.routed
        if routed is not None:
            read = jax.jit(make_read_routed(RoutedLayout.of(self.config), self.mesh))
            yield ProgramSpec(ROUTED_EXPERTS, read, (routed, np.zeros(self.options.max_pages, np.int32)), 0, self._xla)

    def _put_adapter(self) -> Iterator[ProgramSpec]:
        if self.loras is not None:
            flat = FlatParams.of(self.loras)
            placed = jax.tree.map(lambda array: array.sharding, flat)
            put = jax.jit(put_adapter, donate_argnums=0, out_shardings=placed)
            numbers = np.zeros(adapter_size(self.loras), self.options.dtype)
            yield ProgramSpec(PUT_ADAPTER, put, (flat, np.zeros((), np.int32), numbers), placed, self._xla)

    def _example(self, bucket: Bucket) -> PackedBatch:
        """A batch of the bucket's shape, made as every batch is: one row with one token."""
        options = self.options
        groups, slots, max_pages = self.state.forward.page_tables.shape
        plan = example_plan(([0], 1, [0] * groups), options=self.row_options)
        return make_batch(
            plan,
            bucket,
            PageTables(slots - 1, groups, max_pages).changes(plan, 0),
            table_shape=(groups, slots, max_pages),
            page_size=options.page_size,
            options=self.row_options,
            adapters=0 if options.adapters is None else options.adapters.slots,
            state_words=options.state_words,
        )


def forward_name(bucket: Bucket) -> str:
    """The name of the program that is the first half of a bucket's step."""
    return f"forward_{bucket.tokens}x{bucket.rows}{_width(bucket.drafts)}{'_adapted' * bucket.adapted}"


def choose_name(rows: int, variant: Variant, drafts: int = 0) -> str:
    """The name of the program that is the second half of the steps of so many rows with such needs."""
    return f"choose_{rows}{_width(drafts)}_{variant.name}"


def _width(drafts: int) -> str:
    return f"x{1 + drafts}" if drafts else ""
