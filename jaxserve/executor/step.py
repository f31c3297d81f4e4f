"""The jitted step: embed, layers with paged attention, logits of each row's last token, sample. One program a bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.config.kernels import AUTOMATIC, Kernels, kernel_of
from jaxserve.config.windows import LayerGroups, group_layers
from jaxserve.executor.experts import DividedVisit
from jaxserve.models.attention import AttentionSpec
from jaxserve.models.binding import Params, UsedRows, bind
from jaxserve.models.cache_layout import cache_layout
from jaxserve.models.config import DecoderConfig
from jaxserve.models.shards import padded_vocab
from jaxserve.sampling.batch import SamplingBatch
from jaxserve.sampling.blocks import in_blocks
from jaxserve.sampling.logprobs import token_logprobs
from jaxserve.sampling.options import LOGPROBS
from jaxserve.sampling.params import MAX_LOGPROBS
from jaxserve.sampling.sampler import sample
from jaxserve.sampling.state import SamplerState, empty_state, record_tokens
from jaxserve.sampling.truncation import Rule
from jaxserve.sampling.vocabulary import Vocabulary
from jaxserve.step.batch import DeviceBatch
from pallas_kernels.kv_write import kv_write
from pallas_kernels.ragged_paged_attention import ragged_paged_attention
from pallas_kernels.registry import Target
from sharding import KV_PAGES_AXES, LAYER_AXES, partition_spec, shards_of

SCORE_CHUNK = 64  # prompt positions whose logits are held at once
PACKED_WIDTH = 3 + 2 * MAX_LOGPROBS
KV_PAGES = partition_spec(KV_PAGES_AXES)
BY_VOCAB = partition_spec((None, "vocab"))  # logits and the tables of the sampler
EVERYWHERE = PartitionSpec()

Chosen = tuple[jax.Array, SamplerState, jax.Array]
"""Tokens that exist int32[R], the sampler's state after them, packed int32[R,PACKED_WIDTH]."""
Score = Callable[[Params, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
"""What `make_score` makes."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class StepState:
    """What lives on the device from step to step; donated to each.

    Attributes:
        kv_pages: [L,P,2,K,S,D] or [L,P,1,K,S,D], sharded over K; see `cache_layout`. L is the layers of a group: a page is of one
            group's layers, and all groups have their pages in one pool.
        sampler: counts and biases of each slot, sharded over the padded vocabulary.
        last_tokens: int32[slots+1], the token last sampled in each slot.
        hidden: [T,E] of the largest bucket, final hidden states of the last step, for prompt scoring.
        expert_tokens: uint32[layers that have experts,X], visits of each expert since the start, modulo 2**32; [0,0] without any.
    """

    kv_pages: jax.Array
    sampler: SamplerState
    last_tokens: jax.Array
    hidden: jax.Array
    expert_tokens: jax.Array


@dataclass(frozen=True, slots=True)
class StateShape:
    """Sizes of a StepState.

    Attributes:
        slots: running sequences at most.
        num_pages: P, pages of the cache, the null page included.
        page_size: S.
        max_tokens: tokens of the largest bucket.
        kv_dtype: name of the cache's dtype.
        dtype: name of the activations' dtype.
    """

    slots: int
    num_pages: int
    page_size: int
    max_tokens: int
    kv_dtype: str
    dtype: str


def abstract_state(config: DecoderConfig, mesh: Mesh, shape: StateShape) -> StepState:
    """A StepState with a jax.ShapeDtypeStruct at every leaf, which says its sharding. Allocates nothing."""
    shards = shards_of(mesh)
    columns = padded_vocab(config.vocab_size, shards)
    tables = jax.eval_shape(partial(empty_state, shape.slots, columns))

    def array(size: tuple[int, ...], dtype: str, spec: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct(size, jnp.dtype(dtype), sharding=NamedSharding(mesh, spec))

    pages = cache_layout(config, shards).shape(group_layers(config.windows).size, shape.num_pages, shape.page_size)
    experts = (0, 0) if config.experts is None else (sum(config.experts.layers), config.experts.count)
    return StepState(
        kv_pages=array(pages, shape.kv_dtype, KV_PAGES),
        sampler=jax.tree.map(lambda table: array(table.shape, table.dtype, BY_VOCAB), tables),
        last_tokens=array((shape.slots + 1,), "int32", EVERYWHERE),
        hidden=array((shape.max_tokens, config.hidden_size), shape.dtype, EVERYWHERE),
        expert_tokens=array(experts, "uint32", EVERYWHERE),
    )


class PagedAttend:
    """Attention over pages as the decoder's layers call it: writes the layer's new keys and values, then attends.

    Every device works on its own heads of the cache. That is said with shard_map: left to the compiler, the ops' reshapes of
    the cache would gather all of it, and it cannot partition a kernel call at all.
    """

    def __init__(self, mesh: Mesh, kv_pages: jax.Array, batch: DeviceBatch, kernels: Kernels, groups: LayerGroups) -> None:
        self.kv_pages = kv_pages
        self._groups = groups
        self._mesh = mesh
        self._batch = batch
        self._kernels = kernels
        self._target = Target.of(mesh.devices.flat[0])

    def __call__(
        self, layer: int, q: jax.Array, k: jax.Array, v: jax.Array | None, spec: AttentionSpec, sinks: jax.Array | None
    ) -> jax.Array:
        """q[T,H,D], k[T,K,D], v[T,K,D] and sinks[H] if any -> [T,H,D], or [T,H,value_dim]."""
        batch = self._batch
        dtype = self.kv_pages.dtype
        group, place = self._groups.places[layer]

        def write_and_attend(
            kv_pages: jax.Array,
            q: jax.Array,
            k: jax.Array,
            v: jax.Array | None,
            sinks: jax.Array | None,
            kv_slots: jax.Array,
            *rows: jax.Array,
        ) -> tuple[jax.Array, jax.Array]:
            kernel = kernel_of(self._kernels.kv_write, layer)
            kv_pages = kv_write(kv_pages, k, v, kv_slots, layer=place, implementation=kernel, target=self._target)
            attended = ragged_paged_attention(
                q,
                kv_pages,
                *rows,
                layer=place,
                scale=spec.scale,
                window=spec.window,
                soft_cap=spec.soft_cap,
                sinks=sinks,
                value_dim=spec.value_dim,
                implementation=kernel_of(self._kernels.attention, layer),
                target=self._target,
            )
            return kv_pages, attended

        by_head = partition_spec((None, "heads"))
        sharded = jax.shard_map(
            write_and_attend,
            mesh=self._mesh,
            in_specs=(KV_PAGES, by_head, by_head, by_head, partition_spec(("heads",)), *[EVERYWHERE] * 4),
            out_specs=(KV_PAGES, by_head),
            check_vma=False,  # the ops' loops start from constants, which the check takes for a mismatch
        )
        rows = (batch.page_table[group], batch.query_start, batch.kv_length)
        heads = (q.astype(dtype), k.astype(dtype), None if v is None else v.astype(dtype))
        self.kv_pages, attended = sharded(self.kv_pages, *heads, sinks, batch.kv_slots[group], *rows)
        return attended.astype(q.dtype)


def make_step(
    config: DecoderConfig, mesh: Mesh, kernels: Kernels = AUTOMATIC, rules: tuple[Rule, ...] = ()
) -> Callable[[Params, StepState, DeviceBatch], tuple[StepState, jax.Array]]:
    """The step of a model: (params, state, batch) -> (state, packed int32[R,PACKED_WIDTH]).

    A packed row is the chosen token (NO_TOKEN if the row has no valid logits), then, if any row wants log-probabilities, as bits
    of float32: its log-probability, its rank, MAX_LOGPROBS likeliest ids and their log-probabilities. One array is one copy to
    the host.
    """
    choose, groups = _chooser(config, mesh, rules), group_layers(config.windows)

    def step(params: Params, state: StepState, batch: DeviceBatch) -> tuple[StepState, jax.Array]:
        real = batch.query_start[-1]
        decoder = bind(config, params, UsedRows(real, jnp.sum(batch.kv_length > 0, dtype=jnp.int32)))
        last_sampled = state.last_tokens[jnp.maximum(-1 - batch.tokens, 0)]
        tokens = jnp.where(batch.tokens < 0, last_sampled, batch.tokens)
        attend = PagedAttend(mesh, state.kv_pages, batch, kernels, groups)
        visit = DividedVisit(mesh, real, kernels)
        hidden = decoder.hidden(tokens, batch.positions, attend, visit)
        last = jnp.maximum(batch.query_start[1:] - 1, 0)
        chosen, sampler, packed = choose(decoder.logits(hidden[last]), batch.sampling, state.sampler)
        new_state = StepState(
            kv_pages=attend.kv_pages,
            sampler=sampler,
            last_tokens=state.last_tokens.at[batch.sampling.slot].set(chosen),
            hidden=_put_first(state.hidden, hidden),
            expert_tokens=visit.add_to(state.expert_tokens),
        )
        return new_state, packed

    return step


def _put_first(into: jax.Array, rows: jax.Array) -> jax.Array:
    """`into` [N,E] with its first T rows replaced by `rows` [T,E].

    By a scatter: XLA turns an update of a slice into a copy on a stream of its own, which splits a GPU's command buffer in two.
    """
    places = jnp.arange(rows.shape[0], dtype=jnp.int32)
    return into.at[places].set(rows, mode="promise_in_bounds", unique_indices=True, indices_are_sorted=True)


def make_score(config: DecoderConfig, mesh: Mesh) -> Score:
    """Prompt scoring: (params, hidden[T,E], rows int32[T], targets int32[T], count int32[]) -> packed int32[T,PACKED_WIDTH-1].

    Row t holds the log-probabilities of token targets[t] after hidden state rows[t], for t < count. The work follows count.
    """
    pack = jax.shard_map(
        partial(_pack_logprobs, _vocabulary(config, mesh)),
        mesh=mesh,
        in_specs=(BY_VOCAB, EVERYWHERE),
        out_specs=EVERYWHERE,
        check_vma=False,  # every device computes the same from what they exchanged, which the check cannot see
    )

    def score(params: Params, hidden: jax.Array, rows: jax.Array, targets: jax.Array, count: jax.Array) -> jax.Array:
        decoder = bind(config, params)
        chunk = min(SCORE_CHUNK, hidden.shape[0])
        out = jnp.zeros((hidden.shape[0], PACKED_WIDTH - 1), jnp.int32)

        def body(index: jax.Array, out: jax.Array) -> jax.Array:
            start = jnp.minimum(index * chunk, hidden.shape[0] - chunk)
            logits = decoder.logits(hidden[jax.lax.dynamic_slice_in_dim(rows, start, chunk)])
            packed = pack(logits, jax.lax.dynamic_slice_in_dim(targets, start, chunk))
            return jax.lax.dynamic_update_slice_in_dim(out, packed, start, 0)

        scored: jax.Array = jax.lax.fori_loop(0, (count + chunk - 1) // chunk, body, out)
        return scored

    return score


def _vocabulary(config: DecoderConfig, mesh: Mesh) -> Vocabulary:
    return Vocabulary(config.vocab_size, LAYER_AXES if shards_of(mesh) > 1 else None)


def _chooser(
    config: DecoderConfig, mesh: Mesh, rules: tuple[Rule, ...]
) -> Callable[[jax.Array, SamplingBatch, SamplerState], Chosen]:
    """What follows the logits f32[R,padded V], on each device for its part of the vocabulary.

    That is said with shard_map: left to the compiler, top-k and the updates of the tables would gather whole rows of logits.
    """
    vocabulary = _vocabulary(config, mesh)
    # A GPU would launch a step's kernels one by one for a loop, and several devices exchange what they have once, not by block.
    by_block = in_blocks if mesh.size == 1 and mesh.devices.flat[0].platform == "cpu" else _at_once

    def choose(logits: jax.Array, batch: SamplingBatch, state: SamplerState) -> Chosen:
        sampled = by_block(lambda logits, batch: sample(logits, batch, state, vocabulary, rules), logits, batch)
        # The next step may be on its way before the host hears of a bad row: it computes with a token that exists.
        chosen = jnp.maximum(sampled, 0)
        packed = jax.lax.cond(
            batch.any(LOGPROBS),
            lambda: by_block(partial(_pack_logprobs, vocabulary), logits, chosen),
            lambda: jnp.zeros((chosen.shape[0], PACKED_WIDTH - 1), jnp.int32),
        )
        recorded = record_tokens(state, batch.slot, chosen, vocabulary)
        return chosen, recorded, jnp.concatenate([sampled[:, None], packed], axis=1)

    return jax.shard_map(
        choose,
        mesh=mesh,
        in_specs=(BY_VOCAB, EVERYWHERE, BY_VOCAB),
        out_specs=(EVERYWHERE, BY_VOCAB, EVERYWHERE),
        check_vma=False,  # as in make_score
    )


def _at_once(function: Callable[..., jax.Array], *arguments: Any) -> jax.Array:
    """Instead of `in_blocks`."""
    return function(*arguments)


def _pack_logprobs(vocabulary: Vocabulary, logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """Log-probabilities of tokens int32[R] under logits f32[R,C] as int32[R,PACKED_WIDTH-1]."""
    columns = min(MAX_LOGPROBS, vocabulary.size)
    chosen, rank, top_ids, top = token_logprobs(logits, tokens, columns, vocabulary)
    spare = ((0, 0), (0, MAX_LOGPROBS - columns))
    parts = (_bits(chosen)[:, None], rank[:, None], jnp.pad(top_ids, spare), jnp.pad(_bits(top), spare))
    return jnp.concatenate(parts, axis=1)


def _bits(values: jax.Array) -> jax.Array:
    """float32 as the int32 of the same bits."""
    return jax.lax.bitcast_convert_type(values, jnp.int32)
