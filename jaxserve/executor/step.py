"""The jitted step, in two programs: from tokens to logits, and from logits to chosen tokens.

`forward` embeds, runs the layers with paged attention, and computes logits of each row's last tokens; there is one for every
bucket. `choose` samples, and depends on the number of rows, and on what they need (`sampling.variants`). Between the two the host
may look at what the step before chose: masks of what rows may choose are needed by the second one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.config.kernels import AUTOMATIC, Kernels
from jaxserve.config.windows import group_layers
from jaxserve.executor.cache_arrays import CacheArrays, abstract_cache, is_quantized
from jaxserve.executor.experts import ShardedDispatch
from jaxserve.executor.lora import ShardedLora
from jaxserve.executor.packed_logprobs import LOGPROBS_WIDTH, pack_logprobs, vocabulary_of
from jaxserve.executor.paged_attention import PagedAttend
from jaxserve.executor.recurrence import StateTable, TableRecur, abstract_states
from jaxserve.executor.routed_experts import RoutedLayout, record_routed
from jaxserve.executor.whole_attention import WholeAttend
from jaxserve.models.adapted import Loras, StepAdapters
from jaxserve.models.binding import Params, UsedRows, bind_model
from jaxserve.models.config import DecoderConfig
from jaxserve.models.shards import cache_layout, padded_vocab, require_scales
from jaxserve.sampling.batch import SamplingBatch
from jaxserve.sampling.blocks import in_blocks
from jaxserve.sampling.drafts import each_draft, num_chosen, sampled_places
from jaxserve.sampling.options import LOGPROBS, NUM_LOGPROBS, NUM_PROCESSED, PROCESSED
from jaxserve.sampling.sampler import NOTHING, Reading, sample_and_read
from jaxserve.sampling.state import SamplerState, empty_state, record_tokens
from jaxserve.sampling.truncation import Rule
from jaxserve.sampling.variants import Variant
from jaxserve.step.batch import DeviceBatch, RowBatch, input_tokens
from jaxserve.step.codes import GUESSES
from sharding import partition_spec, shards_of

PACKED_WIDTH = 2 + LOGPROBS_WIDTH
BY_VOCAB = partition_spec((None, "vocab"))  # logits and the tables of the sampler
EVERYWHERE = PartitionSpec()

Chosen = tuple[jax.Array, jax.Array, SamplerState, jax.Array]
"""Tokens that exist int32[R,N], how many count int32[R], the sampler's state after them, packed int32[R*N,PACKED_WIDTH]."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class ForwardState:
    """What `forward` keeps on the device from step to step; donated to each.

    Attributes:
        cache: of the shape that `cache_layout` says. L is the layers of a group: a page is of one group's layers, and all groups
            have their pages in one pool.
        states: of recurrent layers; None of a model without.
        page_tables: int32[groups,slots+1,M], of each slot; nobody reads entries behind a row's last key.
        hidden: [T,E] of the largest bucket, final hidden states of the last step, for what is read of them.
        expert_tokens: uint32[layers that have experts,X], visits of each expert since the start, modulo 2**32; [0,0] without any.
    """

    cache: CacheArrays
    states: StateTable | None
    page_tables: jax.Array
    hidden: jax.Array
    expert_tokens: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class ChooseState:
    """What `choose` keeps on the device from step to step; donated to each.

    Attributes:
        sampler: counts and biases of each slot, sharded over the padded vocabulary.
        latest: int32[slots+1,2+N], of each slot the token last sampled, tokens of its sequence, that one included, and what a
            draft model guessed after it (`step.codes`); N is 0 without one.
    """

    sampler: SamplerState
    latest: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class StepState:
    """What lives on the device from step to step."""

    forward: ForwardState
    choose: ChooseState


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Candidates:
    """What `choose` is given of a step of R rows; replicated but for the logits.

    Attributes:
        logits: f32[R*N,padded V], after each row's last tokens, sharded over the vocabulary.
        tokens: int32[R,N], those tokens: the second and later ones are drafts.
        rows: what each row asks for, [R].
    """

    logits: jax.Array
    tokens: jax.Array
    rows: RowBatch


@dataclass(frozen=True, slots=True)
class StateShape:
    """Sizes of a StepState.

    Attributes:
        slots: running sequences at most.
        num_pages: P, pages of the cache, the null page included.
        page_size: S.
        max_pages: M, of the longest sequence in each group of layers.
        max_tokens: tokens of the largest bucket.
        kv_dtype: name of the cache's dtype.
        dtype: name of the activations' dtype.
        guesses: that a draft model makes for a slot.
        routed_experts: whether pages keep which experts their tokens visited.
        state_places: of recurrent states.
    """

    slots: int
    num_pages: int
    page_size: int
    max_pages: int
    max_tokens: int
    kv_dtype: str
    dtype: str
    guesses: int = 0
    routed_experts: bool = False
    state_places: int = 0


Forwarded = tuple[ForwardState, Candidates, tuple[DeviceBatch, jax.Array | None]]
"""What the first half of a step makes, the batch with its tokens looked up, and what was tapped."""


def of_candidates(logits: Any, others: Any) -> Any:
    """A tree of Candidates' structure, or one that stands for it, with something for the logits and the same for all others."""
    return Candidates(logits, others, others)


def abstract_state(config: DecoderConfig, mesh: Mesh, shape: StateShape) -> StepState:
    """A StepState with a jax.ShapeDtypeStruct at every leaf, which says its sharding. Allocates nothing."""
    shards = shards_of(mesh)
    if is_quantized(shape.kv_dtype):
        require_scales(config)
    columns = padded_vocab(config.num_choices, shards)
    tables = jax.eval_shape(partial(empty_state, shape.slots, columns))

    def array(size: tuple[int, ...], dtype: str, spec: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct(size, jnp.dtype(dtype), sharding=NamedSharding(mesh, spec))

    groups = group_layers(config.cache_windows)
    layers = 0 if config.bidirectional else groups.size
    pages = cache_layout(config, shards).shape(layers, shape.num_pages, shape.page_size)
    routed = RoutedLayout.of(config).shape(mesh, shape.num_pages, shape.page_size) if shape.routed_experts else None
    experts = (0, 0) if config.experts is None else (sum(config.experts.layers), config.experts.count)
    return StepState(
        ForwardState(
            cache=abstract_cache(pages, shape.kv_dtype, mesh, routed),
            states=abstract_states(config, mesh, shape.state_places, shards, shape.dtype),
            page_tables=array((len(groups.windows), shape.slots + 1, shape.max_pages), "int32", EVERYWHERE),
            hidden=array((shape.max_tokens, config.hidden_size), shape.dtype, EVERYWHERE),
            expert_tokens=array(experts, "uint32", EVERYWHERE),
        ),
        ChooseState(
            sampler=jax.tree.map(lambda table: array(table.shape, table.dtype, BY_VOCAB), tables),
            latest=array((shape.slots + 1, GUESSES + shape.guesses), "int32", EVERYWHERE),
        ),
    )


def make_forward(
    config: DecoderConfig,
    mesh: Mesh,
    kernels: Kernels = AUTOMATIC,
    max_drafts: int = 0,
    taps: tuple[int, ...] = (),
) -> Callable[[Params, ForwardState, jax.Array, DeviceBatch, Loras | None], Forwarded]:
    """The first half of a model's step: (params, state, latest, batch, loras) -> (state, candidates, handed on).

    N = 1 + max_drafts. `loras` are None in a step without adapters.

    What is handed on is for a draft model: the batch with its tokens looked up, and what goes into the layers of `taps`, side by
    side [T,E*taps].
    """
    groups = group_layers(config.cache_windows).read_by(config.cache_numbers)

    def forward(
        params: Params, state: ForwardState, latest: jax.Array, batch: DeviceBatch, loras: Loras | None = None
    ) -> Forwarded:
        real = batch.query_start[-1]
        rows = jnp.sum(batch.kv_length > 0, dtype=jnp.int32)
        adapters = None if loras is None else StepAdapters(loras, batch.adapter_tokens, ShardedLora(mesh))
        model = bind_model(config, params, UsedRows(real, rows * (1 + max_drafts)), adapters)
        tokens = input_tokens(batch.tokens, latest)
        attend = (
            WholeAttend(mesh, state.cache, batch.query_start)
            if config.bidirectional
            else PagedAttend(mesh, state.cache, batch, kernels, groups)
        )
        dispatch = ShardedDispatch(mesh, real, kernels)
        recurs = () if state.states is None else (TableRecur(mesh, state.states, batch),)
        hidden, tapped = model.tapped(tokens, batch.positions, attend, dispatch, taps, *recurs)
        places = sampled_places(batch.query_start, batch.rows.num_drafts, max_drafts)
        logits = model.logits(hidden[places.reshape(-1)])
        cache = attend.cache
        if cache.routed is not None:
            layout = RoutedLayout.of(config)
            cache = record_routed(layout, mesh, cache, dispatch.routed, batch.kv_slots[layout.group])
        new_state = replace(
            state,
            cache=cache,
            states=recurs[0].table if recurs else None,
            hidden=_put_first(state.hidden, hidden),
            expert_tokens=dispatch.add_to(state.expert_tokens),
        )
        return new_state, Candidates(logits, tokens[places], batch.rows), (replace(batch, tokens=tokens), tapped)

    return forward


def make_choose(
    config: DecoderConfig, mesh: Mesh, variant: Variant, rules: tuple[Rule, ...] = ()
) -> Callable[[ChooseState, Candidates, jax.Array], tuple[ChooseState, jax.Array]]:
    """The second half of a step: (state, candidates, masks) -> (state, packed int32[R*N,PACKED_WIDTH]).

    A packed row is a chosen token (NO_TOKEN if the row has no valid logits) and how many of its row's N count, then, if any row
    wants log-probabilities, as bits of float32: its log-probability, its rank, MAX_LOGPROBS likeliest ids and their
    log-probabilities. One array is one copy to the host.

    `masks` int32[R*N,W] is looked at for rows that are masked: bit i of word w says whether token 32 w + i may be chosen.
    """
    sampled = _chooser(config, mesh, variant, rules)

    def choose(state: ChooseState, candidates: Candidates, masks: jax.Array) -> tuple[ChooseState, jax.Array]:
        rows = candidates.rows
        chosen, counts, sampler, packed = sampled(candidates, masks, state.sampler)
        last = jnp.take_along_axis(chosen, jnp.maximum(counts - 1, 0)[:, None], axis=1)
        latest = jnp.concatenate([last, (rows.sampling.position + counts)[:, None]], axis=1)
        return ChooseState(sampler, state.latest.at[rows.sampling.slot, :GUESSES].set(latest)), packed

    return choose


def is_one_cpu(mesh: Mesh) -> bool:
    """Whether conditionals and loops cost nothing there."""
    return mesh.size == 1 and mesh.devices.flat[0].platform == "cpu"


def rows_at_once(mesh: Mesh) -> Callable[..., jax.Array]:
    """Calls a function of logits and rows: (function, logits, *arguments) -> result, for some rows at a time or for all.

    A GPU would launch a step's kernels one by one for a loop, and several devices exchange what they have once, not by block.
    """
    return in_blocks if is_one_cpu(mesh) else _at_once


def _put_first(into: jax.Array, rows: jax.Array) -> jax.Array:
    """`into` [N,E] with its first T rows replaced by `rows` [T,E].

    By a scatter: XLA turns an update of a slice into a copy on a stream of its own, which splits a GPU's command buffer in two.
    """
    places = jnp.arange(rows.shape[0], dtype=jnp.int32)
    return into.at[places].set(rows, mode="promise_in_bounds", unique_indices=True, indices_are_sorted=True)


def _chooser(
    config: DecoderConfig, mesh: Mesh, variant: Variant, rules: tuple[Rule, ...]
) -> Callable[[Candidates, jax.Array, SamplerState], Chosen]:
    """What follows the logits, on each device for its part of the vocabulary.

    That is said with shard_map: left to the compiler, top-k and the updates of the tables would gather whole rows of logits.
    """
    vocabulary = vocabulary_of(config, mesh)
    by_block = rows_at_once(mesh)

    def sample_rows(state: SamplerState, reading: Reading, logits: jax.Array, rows: SamplingBatch, masks: jax.Array) -> jax.Array:
        tokens, read = sample_and_read(logits, rows, state, vocabulary, variant, reading, rules, masks)
        return jnp.concatenate([tokens[:, None], read], axis=1)

    def choose(candidates: Candidates, masks: jax.Array, state: SamplerState) -> Chosen:
        logits, tokens, batch = candidates.logits, candidates.tokens, candidates.rows
        width = tokens.shape[1]
        rows = each_draft(batch.sampling, tokens)
        each = (logits, rows, masks)
        alternatives = jnp.any((rows[NUM_LOGPROBS] > 0) | (rows[NUM_PROCESSED] > 0)) if variant.asks else None
        pack = partial(pack_logprobs, vocabulary, wanted=alternatives)
        reading = Reading(LOGPROBS_WIDTH, pack) if PROCESSED in variant.needs else NOTHING
        words = by_block(partial(sample_rows, state, reading), *each)
        sampled = words[:, 0]
        # The next step may be on its way before the host hears of a bad row: it computes with a token that exists.
        chosen = jnp.maximum(sampled, 0)
        packed = variant.when(
            (LOGPROBS,),
            rows,
            lambda: by_block(pack, logits, chosen),
            lambda: jnp.zeros((chosen.shape[0], LOGPROBS_WIDTH), jnp.int32),
        )
        if PROCESSED in variant.needs:
            packed = jnp.where((rows[NUM_PROCESSED] >= 0)[:, None], words[:, 1:], packed)
        counts = num_chosen(sampled.reshape(tokens.shape), tokens, batch.samples, batch.num_drafts)
        spare = state.output_counts.shape[0] - 1
        counted = jnp.arange(width, dtype=jnp.int32)[None] < counts[:, None]
        slots = jnp.where(counted.reshape(-1), rows.slot, jnp.int32(spare))
        recorded = record_tokens(state, slots, chosen, vocabulary)
        heads = (sampled[:, None], jnp.repeat(counts, width)[:, None])
        return chosen.reshape(tokens.shape), counts, recorded, jnp.concatenate([*heads, packed], axis=1)

    return jax.shard_map(
        choose,
        mesh=mesh,
        in_specs=(of_candidates(BY_VOCAB, EVERYWHERE), EVERYWHERE, BY_VOCAB),
        out_specs=(EVERYWHERE, EVERYWHERE, BY_VOCAB, EVERYWHERE),
        check_vma=False,  # every device computes the same from what they exchanged, which the check cannot see
    )


def _at_once(function: Callable[..., jax.Array], *arguments: Any) -> jax.Array:
    return function(*arguments)
