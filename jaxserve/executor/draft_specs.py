"""Specs of a draft model's programs, from shapes and shardings, as `lowering` has those of the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxserve.executor.cache_arrays import CacheArrays, abstract_cache, is_quantized
from jaxserve.executor.draft_head import make_head_follow
from jaxserve.executor.draft_step import DraftModel, DraftState, GuessRows, Handed, make_follow, make_guess
from jaxserve.executor.flat_params import FlatParams
from jaxserve.executor.gpu_options import matmul_precision
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.program_spec import ProgramSpec, move_specs
from jaxserve.executor.step import EVERYWHERE, StepState
from jaxserve.models.config import DecoderConfig
from jaxserve.models.shards import cache_layout, require_scales
from jaxserve.sampling.options import RowOptions
from jaxserve.sampling.state import SamplerState
from jaxserve.step.batch import DeviceBatch
from jaxserve.step.buckets import Bucket
from jaxserve.weights.abstract import placed_params
from jaxserve.weights.packed import Packer
from sharding import shards_of

PREFIX = "draft_"


class DraftSpecs:
    """What follows the target's steps and guesses behind them, and moves the draft's part of pages.

    Attributes:
        params, state: jax.ShapeDtypeStructs with shardings.
        targets: that of a head's tokens among the target's; None of a model, and of a head that guesses any token.

    Args:
        state: that of the target's steps.
        xla: options for the devices.
    """

    def __init__(
        self,
        draft: DraftModel,
        mesh: Mesh,
        options: ExecutorOptions,
        row_options: RowOptions,
        state: StepState,
        xla: Mapping[str, str],
    ) -> None:
        self.model = draft
        packer = Packer(draft.config, mesh, draft.quantization, draft.stored)
        self.params = packer.shapes(placed_params(draft.config, mesh, options.dtype))
        cache = draft_cache(draft.config, mesh, options.num_pages, options.page_size, options.kv_dtype)
        self.state, self.targets = _state(draft, mesh, cache, options), _targets(draft, mesh)
        self._mesh, self._xla, self._swaps = mesh, xla, options.swap_slots > 0
        self._precision = matmul_precision(mesh.devices.flat[0], options.dtype)
        self._choose = state.choose
        placed = jax.tree.map(lambda array: array.sharding, (self.state, state.choose.latest))
        head = draft.config.fed is not None
        following = make_head_follow(draft, mesh, options.page_size) if head else make_follow(draft, mesh)
        guessing = make_guess(draft, mesh, options.page_size, row_options)

        def follow(params: FlatParams, state: DraftState, latest: jax.Array, handed: Handed) -> DraftState:
            return following(params.tree(), state, latest, handed)

        def guess(
            params: FlatParams,
            state: DraftState,
            latest: jax.Array,
            sampler: SamplerState,
            targets: jax.Array | None,
            rows: GuessRows,
            place: jax.Array,
        ) -> tuple[DraftState, jax.Array]:
            return guessing(params.tree(), state, latest, sampler, targets, rows, place)

        self._follow = jax.jit(follow, donate_argnums=1, out_shardings=placed[0])
        self._guess = jax.jit(guess, donate_argnums=(1, 2), out_shardings=placed)

    def follow(self, bucket: Bucket, handed: Handed) -> ProgramSpec:
        """(FlatParams, state, latest, what the target hands on) -> state, for a bucket's steps."""
        arguments = FlatParams.of(self.params), self.state, self._choose.latest, handed
        return ProgramSpec(follow_name(bucket), self._follow, arguments, self.state, self._xla, self._precision)

    def guess(self, batch: DeviceBatch) -> ProgramSpec:
        """(FlatParams, state, latest, sampler, targets, GuessRows, place) -> (state, latest), for batches of so many rows."""
        latest, sampler = self._choose.latest, self._choose.sampler
        rows = GuessRows.of(batch)
        arguments = FlatParams.of(self.params), self.state, latest, sampler, self.targets, rows, np.int32(0)
        name = guess_name(batch.kv_length.shape[0])
        return ProgramSpec(name, self._guess, arguments, (self.state, latest), self._xla, self._precision)

    def moves(self) -> Iterator[ProgramSpec]:
        """Those of the draft's part of pages."""
        return move_specs(self.state.cache, self._mesh, swaps=self._swaps, xla=self._xla, prefix=PREFIX)


def draft_cache(config: DecoderConfig, mesh: Mesh, num_pages: int, page_size: int, kv_dtype: str) -> CacheArrays:
    """Shapes of a draft's keys and values, those of all layers in one group."""
    if is_quantized(kv_dtype):
        require_scales(config)
    layout = cache_layout(config, shards_of(mesh))
    return abstract_cache(layout.shape(len(config.cache_windows), num_pages, page_size), kv_dtype, mesh)


def _state(draft: DraftModel, mesh: Mesh, cache: CacheArrays, options: ExecutorOptions) -> DraftState:
    if draft.config.fed is None:
        return DraftState(cache)

    def array(shape: tuple[int, ...], dtype: str) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=NamedSharding(mesh, EVERYWHERE))

    slots = options.max_num_seqs + 1
    hidden = (slots, draft.config.hidden_size), options.dtype
    return DraftState(cache, array(*hidden), array(*hidden), array((slots,), "int32"))


def _targets(draft: DraftModel, mesh: Mesh) -> Any:
    fed = draft.config.fed
    if fed is None or fed.module is not None:
        return None
    return jax.ShapeDtypeStruct((fed.vocab_size,), np.int32, sharding=NamedSharding(mesh, EVERYWHERE))


def follow_name(bucket: Bucket) -> str:
    return f"{PREFIX}follow_{bucket.tokens}x{bucket.rows}"


def guess_name(rows: int) -> str:
    return f"{PREFIX}guess_{rows}"
