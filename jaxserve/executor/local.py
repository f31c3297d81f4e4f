"""The executor that runs plans on this process's devices."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from jaxserve.config.windows import group_layers
from jaxserve.executor.base import Capabilities
from jaxserve.executor.compile_guard import CompileGuard
from jaxserve.executor.copies import copy_batches
from jaxserve.executor.expert_tokens import ExpertTokens
from jaxserve.executor.flat_params import FlatParams
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.programs import SMALL_PROGRAMS, Programs
from jaxserve.executor.result import LocalHandle
from jaxserve.executor.step import StepState
from jaxserve.executor.zeros import untouched_zeros
from jaxserve.metrics.turn import ExecutorCounts
from jaxserve.models.binding import Params
from jaxserve.sampling.params import MAX_LOGPROBS
from jaxserve.step.batch import PackedBatch, make_batch
from jaxserve.step.buckets import Bucket
from jaxserve.step.plan import Plan, RowStart
from jaxserve.weights.recheck import WeightGuard


class LocalExecutor:
    """Owns weights, KV cache and compiled programs.

    Attributes:
        grid: the buckets.
        device_kind: the devices' name.

    Args:
        lowering: what the programs were made from: the model, the devices and the shapes.
        programs: made from it.
        params: the weights, on those devices.
        weight_guard: of the weights; None for none.
    """

    def __init__(self, lowering: Lowering, programs: Programs, params: Params, weight_guard: WeightGuard | None = None) -> None:
        self._config = lowering.config
        self._options = lowering.options
        self._row_options = lowering.row_options
        self._windows = group_layers(lowering.config.windows).windows
        self._params, self._flat_params = params, FlatParams.of(params)
        self._weight_guard = weight_guard
        self._programs = programs
        self._guard = CompileGuard(strict=lowering.options.strict)
        self._padding_tokens = 0
        self._latest: LocalHandle | None = None
        self._expert_tokens = ExpertTokens(lowering.config, programs.expert_tokens)
        device = lowering.mesh.devices.flat[0]
        self._far = device.platform != "cpu"
        self.device_kind: str = device.device_kind
        self.grid = lowering.grid
        self._state: StepState = jax.tree.map(untouched_zeros, lowering.state)

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
        """Wait until every bucket is compiled."""
        self._programs.steps.wait()

    def program_texts(self) -> list[str]:
        """The optimised HLO of every program that has the KV cache, to count collectives and copies in."""
        return [program.as_text() for program in (*self._programs.steps.compiled().values(), self._programs.copy_pages)]

    def capabilities(self) -> Capabilities:
        """The limits; there is no swap space."""
        options = self._options
        return Capabilities(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=options.max_model_len,
            num_pages=options.num_pages,
            page_size=options.page_size,
            windows=self._windows,
        )

    def counts(self) -> ExecutorCounts:
        """What was counted so far."""
        return ExecutorCounts(
            compiled_programs=len(self._programs.steps.compiled()) + SMALL_PROGRAMS,
            late_compiles=self.late_compiles,
            bucket_misses=self.bucket_misses,
            padding_tokens=self._padding_tokens,
            weight_checks=0 if self._weight_guard is None else self._weight_guard.checked,
            expert_tokens=self._expert_tokens.counted(
                self._state.expert_tokens, in_flight=self._latest is not None and not self._latest.collected
            ),
        )

    def submit(self, plan: Plan) -> LocalHandle:
        """Copy pages, pad the plan to its bucket and start the step.

        Raises:
            ValueError: a plan that swaps or is too large.
            EngineDeadError: weights are not what was loaded any more.
        """
        if self._weight_guard is not None:
            self._weight_guard.require_intact()
        if plan.swap_out or plan.swap_in:
            raise ValueError(f"step {plan.step} swaps pages, and the executor has no swap space")
        bucket, program = self._programs.steps.choose(plan.num_tokens, plan.num_rows)
        self._padding_tokens += bucket.tokens - plan.num_tokens
        with self._guard.watch(f"step {plan.step} of {plan.num_tokens} tokens in {plan.num_rows} rows"):
            if plan.copies:
                self._copy(plan)
            for start in plan.starts:
                self._load(start)
            self._state, packed = program(self._flat_params, self._state, self._batch(plan, bucket))
            columns = min(MAX_LOGPROBS, self._config.vocab_size)
            self._latest = LocalHandle(plan, packed, self._score(plan), columns, self._row_options, far=self._far)
            return self._latest

    def _batch(self, plan: Plan, bucket: Bucket) -> PackedBatch:
        options = self._options
        return make_batch(
            plan,
            bucket,
            max_pages=options.max_pages,
            page_size=options.page_size,
            spare_slot=options.max_num_seqs,
            groups=len(self._windows),
            options=self._row_options,
        )

    def _score(self, plan: Plan) -> jax.Array | None:
        """Score prompt tokens from the step's hidden states: the packed rows of one target after the other."""
        if not plan.scores:
            return None
        places = np.zeros((2, self._state.hidden.shape[0]), np.int32)
        count = 0
        for score in plan.scores:
            first, end = int(plan.query_start[score.row]) + score.offset, count + len(score.targets)
            places[0, count:end] = np.arange(first, first + len(score.targets))
            places[1, count:end] = score.targets
            count = end
        rows, targets = places
        scored: jax.Array = self._programs.score(self._params, self._state.hidden, rows, targets, np.array(count, np.int32))
        return scored

    def _copy(self, plan: Plan) -> None:
        """Copy pages on the devices, after the steps before."""
        pages = self._state.kv_pages
        for sources, destinations in copy_batches(plan.copies):
            pages = self._programs.copy_pages(pages, sources, destinations)
        self._state = replace(self._state, kv_pages=pages)

    def _load(self, start: RowStart) -> None:
        """Load a slot's sampling state."""
        vocabulary = self._state.sampler.bias.shape[1]  # padded over several devices
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
        sampler = self._programs.load_row(self._state.sampler, slot, counts, in_prompt, bias)
        self._state = replace(self._state, sampler=sampler)
