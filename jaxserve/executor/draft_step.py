"""The draft model's part of a step: it runs behind the choice of tokens, without the host between, and guesses those to come.

It follows the target first: it computes the step's tokens for its own cache, those of prompts as well, so that it knows whatever
the target knows. Then it guesses a token of every row that chose one, and another after that, as often as the host says.
A page of the pool has room for the keys and values of both models: prefix hits, forks, swaps and refused tokens are the same for
both.

A guess is drawn with the row's temperature and with the noise of its position, which is that of the target's own choice
(Gumbel-max): where both models say the same, they choose the same. A wrong guess changes no token (`sampling.drafts`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxserve.config.fields import Quantization
from jaxserve.config.kernels import AUTOMATIC
from jaxserve.config.windows import LayerGroups
from jaxserve.executor.cache_arrays import CacheArrays
from jaxserve.executor.experts import ShardedDispatch
from jaxserve.executor.packed_logprobs import vocabulary_of
from jaxserve.executor.paged_attention import PagedAttend
from jaxserve.executor.step import BY_VOCAB, EVERYWHERE, is_one_cpu, rows_at_once
from jaxserve.models.binding import Params, UsedRows, bind
from jaxserve.models.config import DecoderConfig
from jaxserve.models.decoder import Decoder
from jaxserve.sampling.batch import SamplingBatch
from jaxserve.sampling.options import RANDOM, RowOptions
from jaxserve.sampling.sampler import sample
from jaxserve.sampling.state import SamplerState
from jaxserve.sampling.variants import Variant, asking
from jaxserve.step.batch import DeviceBatch, RowBatch
from jaxserve.step.codes import GUESSES
from jaxserve.weights.stored_schemes import Schemes


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A model that guesses for another.

    Attributes:
        config: what it is.
        guesses: N, that it makes of a row at most.
        group: of the target's groups of layers the one whose pages its keys and values are in: of layers that see everything.
        quantization, stored: of its weights, as ExecutorOptions has those of the target's.
    """

    config: DecoderConfig
    guesses: int
    group: int = 0
    quantization: Quantization = "none"
    stored: Schemes = ()

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's layers whose inputs a draft head sees, as `Fed` has them."""
        return () if self.config.fed is None else self.config.fed.taps

    @property
    def groups(self) -> LayerGroups:
        """All its layers have one: windows of its own spare it no page."""
        numbers = self.config.cache_numbers
        return LayerGroups((None,), tuple((0, number) for number in numbers), max(numbers) + 1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class DraftState:
    """What a draft model keeps on the device from step to step; donated to each of its programs.

    Attributes:
        cache: its keys and values.
        known, guessed: [slots+1,E] of a draft head, the hidden states that it goes on from: the target's behind each slot's
            sequence, and its own behind its latest guess; None of a model.
        place: int32[slots+1], the position of `known`.
    """

    cache: CacheArrays
    known: jax.Array | None = None
    guessed: jax.Array | None = None
    place: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Handed:
    """What the target's half of a step hands on to a draft model.

    Attributes:
        batch: the step's, its tokens looked up.
        tapped: [T,E*taps], what went into some of its layers, or came out of its final norm, for a draft head.
    """

    batch: DeviceBatch
    tapped: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class GuessRows:
    """What guesses need of a step's R rows; attributes as a DeviceBatch's."""

    kv_length: jax.Array
    page_table: jax.Array
    rows: RowBatch

    @classmethod
    def of(cls, batch: DeviceBatch) -> GuessRows:
        return cls(batch.kv_length, batch.page_table, batch.rows)


Follow = Callable[[Params, DraftState, jax.Array, Handed], DraftState]
"""(params, state, latest, what the target hands on) -> state"""
Guess = Callable[
    [Params, DraftState, jax.Array, SamplerState, jax.Array | None, GuessRows, jax.Array], tuple[DraftState, jax.Array]
]
"""(params, state, latest, sampler, targets, rows, place) -> (state, latest)"""


def make_follow(draft: DraftModel, mesh: Mesh) -> Follow:
    """The program that computes a step's tokens for a model's cache, behind the choice of tokens; `draft_head` has a head's."""

    def follow(params: Params, state: DraftState, latest: jax.Array, handed: Handed) -> DraftState:
        batch = own_pages(handed.batch, draft.group)
        used = UsedRows(batch.query_start[-1], jnp.sum(batch.kv_length > 0, dtype=jnp.int32))
        return replace(state, cache=run_model(draft, mesh, params, state.cache, batch, used)[0])

    return follow


def make_guess(draft: DraftModel, mesh: Mesh, page_size: int, row_options: RowOptions) -> Guess:
    """The program that guesses a token of every row.

    `place` int32 scalar counts the guesses of the rows from 0. `latest` int32[slots+1,2+N] has what the step chose and the
    guesses before; the sampler's state is only read. `targets` int32[tokens of a head] are
    the target's tokens that it guesses; None for all of them, in their order.
    """
    choose = _chooser(draft, mesh, row_options)
    behind = 0 if draft.config.fed is None else 1  # a head computes the place before: that of the hidden state

    def guess(
        params: Params,
        state: DraftState,
        latest: jax.Array,
        sampler: SamplerState,
        targets: jax.Array | None,
        rows: GuessRows,
        place: jax.Array,
    ) -> tuple[DraftState, jax.Array]:
        slots, real = rows.rows.sampling.slot, jnp.sum(rows.kv_length > 0, dtype=jnp.int32)
        before = latest[slots, jnp.where(place == 0, 0, GUESSES - 1 + place)]
        batch = _one_each(rows, draft.group, latest[slots, 1] + place - behind, before, real, page_size)
        used = UsedRows(real, real)
        if state.known is None or state.guessed is None:
            cache, decoder, hidden = run_model(draft, mesh, params, state.cache, batch, used)
            state, logits = replace(state, cache=cache), decoder.logits(hidden)
        else:
            hidden = jnp.where(place == 0, state.known[slots], state.guessed[slots])
            cache, decoder, (normed, hidden) = run_head(draft, mesh, params, state.cache, batch, used, hidden)
            state = replace(state, cache=cache, guessed=state.guessed.at[slots].set(hidden))
            logits = decoder.logits(normed)
            logits = logits if targets is None else _spread(logits, targets, sampler.bias.shape[1])
        known = jnp.arange(latest.shape[1] - GUESSES, dtype=jnp.int32) < place  # of its guesses
        guessed = jnp.where(known[None], latest[slots, GUESSES:], -1)
        sampling = replace(batch.rows.sampling, position=latest[slots, 1] + place, drafts=guessed)
        return state, latest.at[slots, GUESSES + place].set(choose(logits, sampling, sampler))

    return guess


def own_pages(batch: DeviceBatch, group: int) -> DeviceBatch:
    """A batch whose only group of layers is the one that a draft's keys and values share pages with."""
    one = slice(group, group + 1)
    return replace(batch, page_table=batch.page_table[one], kv_slots=batch.kv_slots[one])


def run_model(
    draft: DraftModel, mesh: Mesh, params: Params, cache: CacheArrays, batch: DeviceBatch, used: UsedRows
) -> tuple[CacheArrays, Decoder, jax.Array]:
    """The cache after a batch, the decoder, and its final hidden states [T,E]."""
    decoder = bind(draft.config, params, used)
    attend = PagedAttend(mesh, cache, batch, AUTOMATIC, draft.groups)
    hidden = decoder.hidden(batch.tokens, batch.positions, attend, ShardedDispatch(mesh, used.tokens))
    return attend.cache, decoder, hidden


def run_head(
    draft: DraftModel, mesh: Mesh, params: Params, cache: CacheArrays, batch: DeviceBatch, used: UsedRows, hidden: jax.Array
) -> tuple[CacheArrays, Decoder, tuple[jax.Array, jax.Array]]:
    """The cache after hidden states [T,E] and the batch's tokens, which came after them; the decoder; what it makes of them."""
    decoder = bind(draft.config, params, used)
    attend = PagedAttend(mesh, cache, batch, AUTOMATIC, draft.groups)
    made = decoder.follow(hidden, batch.tokens, batch.positions, attend, ShardedDispatch(mesh, used.tokens))
    return attend.cache, decoder, made


def _spread(logits: jax.Array, targets: jax.Array, columns: int) -> jax.Array:
    """Logits f32[R,padded tokens of a head] as those of the target's tokens: -inf for all that it does not guess."""
    rows = jnp.full((logits.shape[0], columns), -jnp.inf, logits.dtype)
    spread: jax.Array = rows.at[:, targets].set(logits[:, : targets.shape[0]], mode="promise_in_bounds", unique_indices=True)
    return spread


def _one_each(rows: GuessRows, group: int, length: jax.Array, tokens: jax.Array, real: jax.Array, page_size: int) -> DeviceBatch:
    """A token a row, the last of `length` int32[R]. Rows that chose nothing have one in the null page."""
    table = rows.page_table[group]
    runs = rows.rows.samples & (rows.kv_length > 0) & (length > 0) & (length <= table.shape[1] * page_size)
    positions = jnp.where(runs, length - 1, 0)
    index = jnp.arange(table.shape[0] + 1, dtype=jnp.int32)
    return DeviceBatch(
        tokens=jnp.where(runs, tokens, 0),
        positions=positions,
        kv_slots=jnp.where(runs, cache_slots(table, positions, page_size), 0)[None],
        query_start=jnp.minimum(index, real),
        kv_length=jnp.where(index[:-1] < real, positions + 1, 0),
        page_table=jnp.where(runs[:, None], table, 0)[None],
        slots=rows.rows.sampling.slot,
        rows=rows.rows,
        states=jnp.zeros((table.shape[0], 0), jnp.int32),
        row_of_token=index[:-1],
        adapter_tokens=jnp.zeros(0, jnp.int32),
    )


def cache_slots(table: jax.Array, positions: jax.Array, page_size: int) -> jax.Array:
    """Where in the cache positions int32[N] are, each by its row of the page table int32[N,M]."""
    size = jnp.int32(page_size)
    page = jnp.take_along_axis(table, jax.lax.div(positions, size)[:, None], axis=1)[:, 0]
    slots: jax.Array = page * size + jax.lax.rem(positions, size)
    return slots


def _chooser(
    draft: DraftModel, mesh: Mesh, row_options: RowOptions
) -> Callable[[jax.Array, SamplingBatch, SamplerState], jax.Array]:
    """Guesses from logits f32[R,padded V], on each device for its part of the vocabulary: int32[R], tokens that exist.

    Where a program is a straight line, what rows ask for besides their temperature is left to the target.
    """
    vocabulary, by_block = vocabulary_of(draft.config, mesh), rows_at_once(mesh)
    variant = asking(row_options) if is_one_cpu(mesh) else Variant("guess", frozenset({RANDOM}))

    def choose(logits: jax.Array, rows: SamplingBatch, state: SamplerState) -> jax.Array:
        chosen = by_block(lambda logits, rows: sample(logits, rows, state, vocabulary, variant), logits, rows)
        return jnp.maximum(chosen, 0)

    return jax.shard_map(
        choose,
        mesh=mesh,
        in_specs=(BY_VOCAB, EVERYWHERE, BY_VOCAB),
        out_specs=EVERYWHERE,
        check_vma=False,  # as the choice of tokens
    )
