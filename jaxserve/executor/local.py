"""The executor that runs plans on this process's devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxserve.config.kernels import AUTOMATIC, Kernels
from jaxserve.executor.base import Capabilities
from jaxserve.executor.batch import DeviceBatch, make_batch
from jaxserve.executor.buckets import Bucket, BucketGrid
from jaxserve.executor.compile_guard import CompileGuard
from jaxserve.executor.copies import copy_batches
from jaxserve.executor.lowering import example_batch
from jaxserve.executor.programs import SMALL_PROGRAMS, Programs, Progress, compile_programs
from jaxserve.executor.result import LocalHandle
from jaxserve.executor.step import StateShape, StepState, abstract_state
from jaxserve.metrics.turn import ExecutorCounts
from jaxserve.models.binding import Params
from jaxserve.models.config import DecoderConfig
from jaxserve.sampling.params import MAX_LOGPROBS
from jaxserve.scheduler.plan import Plan, RowStart


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """Shapes of an executor: rows, tokens and pages; `kv_dtype` names the cache's dtype, `kernels` what computes the layers.

    `first_alone`: be ready when a few steps are compiled that hold every plan. `strict`: a compilation inside a step is an error.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_pages: int
    page_size: int
    kv_dtype: str
    kernels: Kernels = AUTOMATIC
    first_alone: bool = False
    strict: bool = False


class LocalExecutor:
    """Owns weights, KV cache and compiled programs.

    Attributes:
        grid: the buckets.
        device_kind: the devices' name.

    Args:
        config: the model.
        params: its weights, on the devices of `mesh`.
        mesh: with the axis "tensor", over which KV heads are sharded.
        options: shapes.
        progress: told about compilation.
    """

    def __init__(self, config: DecoderConfig, params: Params, mesh: Mesh, options: ExecutorOptions, progress: Progress) -> None:
        self._config = config
        self._params = params
        self._options = options
        self._max_pages = -(-options.max_model_len // options.page_size)
        device = mesh.devices.flat[0]
        self.device_kind: str = device.device_kind
        self.grid = BucketGrid.make(
            max_rows=options.max_num_seqs,
            max_tokens=options.max_num_batched_tokens,
            min_rows=2 if device.platform == "cpu" else 1,  # XLA's CPU dots leave the fast path at one row
            fine=device.platform != "cpu",
        )
        self._state = self._initial_state(mesh)
        self._programs: Programs = compile_programs(
            config,
            mesh,
            self.grid,
            params,
            self._state,
            self._example,
            progress,
            options.kernels,
            first_alone=options.first_alone,
        )
        self._guard = CompileGuard(strict=options.strict)
        self._padding_tokens = 0

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
        )

    def counts(self) -> ExecutorCounts:
        """What was counted so far."""
        return ExecutorCounts(
            compiled_programs=len(self._programs.steps.compiled()) + SMALL_PROGRAMS,
            late_compiles=self.late_compiles,
            bucket_misses=self.bucket_misses,
            padding_tokens=self._padding_tokens,
        )

    def submit(self, plan: Plan) -> LocalHandle:
        """Copy pages, pad the plan to its bucket and start the step. Raises ValueError for a plan that swaps or is too large."""
        if plan.swap_out or plan.swap_in:
            raise ValueError(f"step {plan.step} swaps pages, and the executor has no swap space")
        bucket, program = self._programs.steps.choose(plan.num_tokens, plan.num_rows)
        self._padding_tokens += bucket.tokens - plan.num_tokens
        with self._guard.watch(f"step {plan.step} of {plan.num_tokens} tokens in {plan.num_rows} rows"):
            if plan.copies:
                self._copy(plan)
            for start in plan.starts:
                self._load(start)
            self._state, packed = program(self._params, self._state, self._batch(plan, bucket))
            return LocalHandle(plan, packed, self._score(plan), min(MAX_LOGPROBS, self._config.vocab_size))

    def _batch(self, plan: Plan, bucket: Bucket) -> DeviceBatch:
        options = self._options
        return make_batch(plan, bucket, max_pages=self._max_pages, page_size=options.page_size, spare_slot=options.max_num_seqs)

    def _score(self, plan: Plan) -> jax.Array | None:
        """Score prompt tokens from the step's hidden states."""
        if not plan.scores:
            return None
        targets = np.zeros(self._state.hidden.shape[0], np.int32)
        end = 0
        for score in plan.scores:
            start = int(plan.query_start[score.row]) + score.offset
            end = start + len(score.targets)
            targets[start:end] = score.targets
        scored: jax.Array = self._programs.score(self._params, self._state.hidden, targets, np.array(end, np.int32))
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

    def _initial_state(self, mesh: Mesh) -> StepState:
        """Zeros on the devices."""
        options = self._options
        shape = StateShape(
            slots=options.max_num_seqs,
            num_pages=options.num_pages,
            page_size=options.page_size,
            max_tokens=max(bucket.tokens for bucket in self.grid.buckets),
            kv_dtype=options.kv_dtype,
            dtype=self._activation_dtype(),
        )
        zeros: Callable[..., jax.Array] = jnp.zeros
        state: StepState = jax.tree.map(
            lambda array: zeros(array.shape, array.dtype, device=array.sharding), abstract_state(self._config, mesh, shape)
        )
        return state

    def _activation_dtype(self) -> str:
        return str(jax.tree.leaves(self._params)[0].dtype)

    def _example(self, bucket: Bucket) -> DeviceBatch:
        """A batch of the bucket's shape."""
        options = self._options
        return example_batch(bucket, max_pages=self._max_pages, page_size=options.page_size, spare_slot=options.max_num_seqs)
