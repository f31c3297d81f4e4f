"""The executor that runs plans on this process's devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import jax
import numpy as np

from jaxserve.config.windows import group_layers
from jaxserve.executor.adapter_slots import AdapterSlots
from jaxserve.executor.base import Capabilities
from jaxserve.executor.compile_guard import CompileGuard
from jaxserve.executor.draft_runner import DraftRunner, DraftWeights
from jaxserve.executor.expert_tokens import ExpertTokens
from jaxserve.executor.flat_params import FlatParams
from jaxserve.executor.held_weights import HeldWeights
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.page_mover import PageMover
from jaxserve.executor.programs import Programs
from jaxserve.executor.readers import arguments_of
from jaxserve.executor.result import LocalHandle, ResultLayout
from jaxserve.executor.step import StepState
from jaxserve.executor.zeros import untouched_zeros
from jaxserve.metrics.turn import ExecutorCounts
from jaxserve.models.binding import Params
from jaxserve.step.batch import PackedBatch, make_batch
from jaxserve.step.buckets import Bucket
from jaxserve.step.page_tables import PageTables, most_changes
from jaxserve.step.plan import Ints, MoveKind, Plan, RowStart
from jaxserve.weights.recheck import WeightGuard


class LocalExecutor:
    """Owns weights, KV cache and compiled programs.

    Attributes:
        weights: what steps run with.
        weight_guard: of these; None for none.
        has_cache: whether the KV cache takes memory now.
        adapters: that rows may have; None for none.

    Args:
        lowering: what the programs were made from: the model, the devices and the shapes.
        params: the weights, on those devices.
        weight_guard: of the weights; None for none.
        draft: those of the lowering's draft model, if it has one.
    """

    def __init__(
        self,
        lowering: Lowering,
        programs: Programs,
        params: Params,
        weight_guard: WeightGuard | None = None,
        draft: DraftWeights | None = None,
    ) -> None:
        self._layout = ResultLayout(lowering.config, lowering.row_options, lowering.readers)
        self._options = lowering.options
        self._row_options = lowering.row_options
        self._windows = group_layers(lowering.config.cache_windows).windows
        groups, slots, max_pages = self._table_shape = lowering.state.forward.page_tables.shape
        self._tables = PageTables(slots - 1, groups, max_pages)
        self.weights = HeldWeights(params)
        self.weight_guard = weight_guard
        self._programs = programs
        self._guard = CompileGuard(strict=lowering.options.strict)
        self._padding_tokens = 0
        self._latest: LocalHandle | None = None
        self._expert_tokens = ExpertTokens(lowering.config, programs.expert_tokens)
        device = lowering.mesh.devices.flat[0]
        self._far = device.platform != "cpu"
        self.device_kind: str = device.device_kind
        self.grid = lowering.grid
        state: StepState = jax.tree.map(untouched_zeros, lowering.state)
        self._forward, self._choose = state.forward, state.choose
        self._cache, self._states = lowering.state.forward.cache, lowering.state.forward.states
        self.has_cache = True
        widths = {(bucket.rows, bucket.drafts) for bucket in lowering.grid.buckets}
        self._no_masks = {width: untouched_zeros(lowering.masks(*width)) for width in widths}
        self._mover = PageMover(programs.moves, lowering.state.forward.cache, self._options.swap_slots)
        self._draft: DraftRunner | None = None
        if lowering.draft is not None and draft is not None:
            self._draft = DraftRunner(lowering.draft, draft, programs.draft_moves, self._options.swap_slots)
        self.adapters = None if lowering.loras is None else AdapterSlots(lowering.loras, programs.put_adapter)
        self._moved: Counter[MoveKind] = Counter()
        self._swap_page_seconds = 0.0
        if self._options.swap_slots:
            cache, self._swap_page_seconds = self._mover.measure(self._forward.cache)
            self._forward = replace(self._forward, cache=cache)

    @property
    def draft_weights(self) -> HeldWeights | None:
        """Those of the draft model, if there is one."""
        return None if self._draft is None else self._draft.weights

    @property
    def temporary_bytes(self) -> int:
        """Workspace of the largest program, bytes per device."""
        return self._programs.temporary_bytes

    @property
    def bucket_misses(self) -> int:
        """Plans that were padded further than to their own bucket, because that was not compiled yet."""
        return self._programs.steps.misses

    @property
    def late_compiles(self) -> int:
        """Programs that steps compiled; there should be none."""
        return self._guard.compiles

    def wait_compiled(self) -> None:
        self._programs.steps.wait()

    def program_texts(self) -> list[str]:
        """The optimised HLO of every program that has the KV cache, to count collectives and copies in."""
        forwards = self._programs.steps.forwards().values()
        return [program.as_text() for program in (*forwards, *self._programs.moves.values())]

    def choice_texts(self) -> dict[tuple[int, str], str]:
        """The optimised HLO of the second halves of steps without drafts, by rows and the variant's name."""
        chooses = self._programs.steps.chooses()
        return {(rows, variant.name): program.as_text() for (rows, drafts, variant), program in chooses.items() if not drafts}

    def drop_cache(self) -> None:
        """Free the KV cache and recurrent states; no step may be in flight, and none may come before `make_cache`."""
        for array in jax.tree.leaves((self._forward.cache, self._forward.states)):
            array.delete()
        if self._draft is not None:
            self._draft.drop_cache()
        self.has_cache = False

    def make_cache(self) -> None:
        """An empty KV cache in the place of the one that was freed, and empty states."""
        cache, states = jax.tree.map(untouched_zeros, (self._cache, self._states))
        self._forward = replace(self._forward, cache=cache, states=states)
        if self._draft is not None:
            self._draft.make_cache()
        self.has_cache = True

    def capabilities(self) -> Capabilities:
        options = self._options
        return Capabilities(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=options.max_model_len,
            num_pages=options.num_pages,
            page_size=options.page_size,
            swap_slots=options.swap_slots,
            swap_page_seconds=self._swap_page_seconds,
            windows=self._windows,
            max_drafts=options.max_drafts,
            adapter_slots=0 if options.adapters is None else options.adapters.slots,
            guesses=0 if self._draft is None else self._draft.guesses,
            row_options=self._row_options.names,
            states=options.states,
        )

    def counts(self) -> ExecutorCounts:
        return ExecutorCounts(
            compiled_programs=self._programs.num_compiled(),
            late_compiles=self.late_compiles,
            bucket_misses=self.bucket_misses,
            padding_tokens=self._padding_tokens,
            swapped_out_pages=self._moved[MoveKind.TO_TIER],
            swapped_in_pages=self._moved[MoveKind.FROM_TIER],
            weight_checks=0 if self.weight_guard is None else self.weight_guard.checked,
            expert_tokens=self._expert_tokens.counted(
                self._forward.expert_tokens, in_flight=self._latest is not None and not self._latest.collected
            ),
        )

    def routed_experts(self, pages: Sequence[int]) -> jax.Array:
        """Which experts the tokens in these pages visited, uint[M*S,layers that have experts,active], behind the steps before."""
        assert self._programs.routed_experts is not None, "pages keep no experts"
        padded = np.zeros(self._options.max_pages, np.int32)
        padded[: len(pages)] = pages
        read: jax.Array = self._programs.routed_experts(self._forward.cache.routed, padded)
        return read

    def submit(self, plan: Plan) -> LocalHandle:
        """Move pages, pad the plan to its bucket and start the step.

        Raises:
            ValueError: a plan that is too large, has too many drafts, or swaps where there is no swap space.
            EngineDeadError: weights are not what was loaded any more.
        """
        if self.weight_guard is not None:
            self.weight_guard.require_intact()
        if not self._options.swap_slots and any(move.kind is not MoveKind.COPY for move in plan.moves):
            raise ValueError(f"step {plan.step} swaps pages, and the executor has no swap space")
        if (most := int(plan.num_drafts.max(initial=0))) > self._options.max_drafts:
            raise ValueError(f"step {plan.step} has {most} drafts in a row, the executor takes {self._options.max_drafts}")
        adapted = plan.adapters is not None
        if self.adapters is None and (adapted or plan.adapter_loads):
            raise ValueError(f"step {plan.step} has adapters, and the executor has no slots for them")
        if (plan.states is None) != (self._options.states is None):
            raise ValueError(f"step {plan.step} must say where recurrent states are if the model has some, and not otherwise")
        bucket = self._programs.steps.bucket(plan.num_tokens, plan.num_rows, plan.longest_row, most, adapted=adapted)
        program = self._programs.steps.program(bucket, self._row_options.needed(plan.sampling, plan.samples))
        self._padding_tokens += bucket.tokens - plan.num_tokens
        with self._guard.watch(f"step {plan.step} of {plan.num_tokens} tokens in {plan.num_rows} rows"):
            if plan.moves:
                self._moved.update(move.kind for move in plan.moves)
                self._forward = replace(self._forward, cache=self._mover.move(self._forward.cache, plan.moves))
                if self._draft is not None:
                    self._draft.move(plan.moves)
            for start in plan.starts:
                self._load(start)
            loras = self._adapters_of(plan)
            batch = self._batch(plan, bucket)
            arguments = self.weights.flat, self._forward, self._choose.latest, batch, loras
            self._forward, candidates, handed = program.forward(*arguments)

            def choose(masks: Ints | None) -> jax.Array:
                given = self._no_masks[bucket.rows, bucket.drafts] if masks is None else self._masks(masks, 1 + most, bucket)
                self._choose, packed = program.choose(self._choose, candidates, given)
                if self._draft is not None and program.draft is not None and plan.guesses is not None:
                    self._choose = self._draft.run(program.draft, self._choose, handed, plan.guesses)
                return cast(jax.Array, packed)

            self._latest = LocalHandle(plan, choose, self._read(plan), self._layout, 1 + bucket.drafts, far=self._far)
            self._mover.collect()
            if self._draft is not None:
                self._draft.collect()
            return self._latest

    def _adapters_of(self, plan: Plan) -> FlatParams | None:
        """What its rows with adapters run with, once those that come with the step are in their slots."""
        if self.adapters is None:
            return None
        self.adapters.load(plan.adapter_loads)
        return None if plan.adapters is None else self.adapters.flat

    def _batch(self, plan: Plan, bucket: Bucket) -> PackedBatch:
        """The plan as the device is given it, which knows all page tables then."""
        options = self._options
        groups, slots, max_pages = self._table_shape
        most = most_changes(bucket.tokens, bucket.rows, groups, options.page_size)
        changes = self._tables.changes(plan, most)
        for slot, table in changes.whole:
            tables = self._programs.put_table(self._forward.page_tables, np.array(slot, np.int32), table)
            self._forward = replace(self._forward, page_tables=tables)
        return make_batch(
            plan,
            bucket,
            changes,
            table_shape=(groups, slots, max_pages),
            page_size=options.page_size,
            options=self._row_options,
            adapters=0 if options.adapters is None else options.adapters.slots,
            state_words=options.state_words,
        )

    def _masks(self, masks: Ints, each: int, bucket: Bucket) -> Ints:
        """Padded to a step's rows, to the tokens that they may choose, `each` at most, and to the words that the devices have."""
        rows, words = len(masks) // each, masks.shape[1]
        size = self._no_masks[bucket.rows, bucket.drafts].shape
        padded = np.zeros((bucket.rows, 1 + bucket.drafts, size[1]), np.int32)
        padded[:rows, :each, :words] = masks.reshape(rows, each, words)
        return padded.reshape(size)

    def _read(self, plan: Plan) -> dict[str, jax.Array]:
        """What readers read from the step's hidden states: the words of one token after the other."""
        if not plan.readouts:
            return {}
        found, hidden = {}, self._forward.hidden
        for reader in self._layout.readers:
            arguments = arguments_of(plan, reader, hidden.shape[0])
            if arguments is not None:
                found[reader.name] = self._programs.readers[reader.name](self.weights.tree, hidden, *arguments)
        return found

    def _load(self, start: RowStart) -> None:
        vocabulary = self._choose.sampler.bias.shape[1]  # padded over several devices
        counts = np.bincount(np.array(start.output, np.int64), minlength=vocabulary).astype(np.int32)
        in_prompt = np.zeros(vocabulary, np.bool_)
        in_prompt[list(start.prompt)] = True
        bias = np.zeros(vocabulary, np.float32)
        if start.allowed is not None:
            bias[:] = -np.inf
            bias[list(start.allowed)] = 0.0
        for token, value in start.logit_bias.items():
            bias[token] += value
        slot = np.array(start.slot, np.int32)
        sampler = self._programs.load_row(self._choose.sampler, slot, counts, in_prompt, bias)
        self._choose = replace(self._choose, sampler=sampler)
