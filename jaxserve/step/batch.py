"""A plan padded to a bucket: what one step reads, as one array. Warm-up and serving both come through `make_batch`.

Padding rows have no queries, no keys and the spare slot; padding tokens write to the null page. Every array that a program is
given costs the host tens of microseconds, so all of a batch is one, and the program takes it apart. Where tokens are follows from
how long their rows are, which only the device may know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sampling.batch import SamplingBatch
from jaxserve.sampling.options import STANDARD, RowOptions
from jaxserve.step.buckets import Bucket
from jaxserve.step.codes import GUESSES
from jaxserve.step.page_tables import TableChanges, most_changes
from jaxserve.step.plan import NO_STATE, STATE_WORDS, Plan

# 256 bytes, at whose multiples arrays of Mosaic's kernels begin: XLA hands them a part of a batch's words where it lies.
ALIGNED_WORDS = 64


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class RowBatch:
    """What the choice of tokens needs of R rows. All replicated.

    Attributes:
        sampling: parameters, [R].
        samples: bool[R], rows that choose a token.
        num_drafts: int32[R], of each row's last tokens.
    """

    sampling: SamplingBatch
    samples: jax.Array
    num_drafts: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """Inputs of a step in a bucket of T tokens and R rows. All replicated.

    Attributes:
        tokens: int32[T]; -1-s stands for the token last sampled in slot s.
        positions: int32[T], each token's place in its sequence.
        kv_slots: int32[groups,T], page * page_size + offset where its key and value go in the layers of a group; 0 for padding.
        query_start: int32[R+1], first token of each row.
        kv_length: int32[R], keys of each row, this step's included; 0 for padding.
        page_table: int32[groups,R,M], pages of each row; 0 for padding.
        slots: int32[R], of each row; the spare one for padding.
        rows: what their choice of tokens needs.
        states: int32[R,STATE_WORDS+W], where rows have their recurrent states (`Plan.states`); [R,0] of a model without.
        row_of_token: int32[T].
        adapter_tokens: int32[S], tokens of rows whose adapter is in each slot, which come slot after slot; [0] if none has one.
    """

    tokens: jax.Array
    positions: jax.Array
    kv_slots: jax.Array
    query_start: jax.Array
    kv_length: jax.Array
    page_table: jax.Array
    slots: jax.Array
    rows: RowBatch
    states: jax.Array
    row_of_token: jax.Array
    adapter_tokens: jax.Array


def input_tokens(tokens: jax.Array, latest: jax.Array) -> jax.Array:
    """Tokens int32[T] of a plan, with what the device knows of them."""
    slots = latest.shape[0]
    code = jnp.maximum(-1 - tokens, 0)
    place = jax.lax.div(code, jnp.int32(slots))
    column = jnp.where(place == 0, 0, GUESSES - 1 + place)
    return jnp.where(tokens < 0, latest[jax.lax.rem(code, jnp.int32(slots)), column], tokens)


class BatchLayout(NamedTuple):
    """Sizes of a batch, which say where what is in its words.

    Attributes:
        tokens: T.
        rows: R.
        changes: of page tables that come with it, at most.
        page_size: S.
        words: W, of a row's options.
        flags: what rows can need.
        adapters: S, slots of adapters; 0 for a step without.
        states: words of a row about its recurrent states; 0 for a model without.
    """

    tokens: int
    rows: int
    changes: int
    page_size: int
    words: int
    flags: int
    adapters: int = 0
    states: int = 0

    @property
    def size(self) -> int:
        """Words in all."""
        ends: list[int] = [place.stop for place, _ in _places(self).values()]
        return max(ends)

    def parts(self, words: Any) -> dict[str, Any]:
        """The parts of an array of words; of numpy's they are views."""
        return {name: words[place].reshape(shape) for name, (place, shape) in _places(self).items()}


@lru_cache(maxsize=1024)  # more than a grid has buckets
def _places(layout: BatchLayout) -> dict[str, tuple[slice, tuple[int, ...]]]:
    """The words of each part, and its shape."""
    tokens, rows, changes, _, words, flags, adapters, states = layout
    shapes: dict[str, tuple[int, ...]] = {
        "tokens": (tokens,),
        "row_of_token": (tokens,),
        "query_start": (rows + 1,),
        "kv_length": (rows,),
        "changes": (changes, 2),
        "pages": (rows,),
        "samples": (rows,),
        "num_drafts": (rows,),
        "options": (rows, words),
        "slot": (rows,),
        "flags": (flags,),
        "adapter_tokens": (adapters,),
        "states": (rows, states),
    }
    places, end = {}, 0
    for name, shape in shapes.items():
        start = -(-end // ALIGNED_WORDS) * ALIGNED_WORDS
        end = start + math.prod(shape)
        places[name] = slice(start, end), shape
    return places


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A DeviceBatch as one fresh array, owned by its step.

    Attributes:
        words: int32[layout.size].
        layout: what is where.
    """

    words: jax.Array
    layout: BatchLayout = field(metadata={"static": True})

    def changed(self, page_tables: jax.Array) -> jax.Array:
        """int32[groups,slots+1,M], the page tables as of this step."""
        changes = self.layout.parts(self.words)["changes"]
        flat = page_tables.reshape(-1).at[changes[:, 0]].set(changes[:, 1], mode="drop")
        return flat.reshape(page_tables.shape)

    def unpacked(self, lengths: jax.Array, page_tables: jax.Array, options: RowOptions = STANDARD) -> DeviceBatch:
        """The batch, given those tables.

        `lengths` int32[slots+1] are tokens of the sequence in each slot, for rows that go on where it is.
        """
        parts, size = self.layout.parts(self.words), self.layout.page_size
        tokens, query_start, row_of_token = parts["tokens"], parts["query_start"], parts["row_of_token"]
        first = tokens[jnp.minimum(query_start[:-1], self.layout.tokens - 1)]
        there = lengths[jnp.maximum(-1 - first, 0)] + query_start[1:] - query_start[:-1] - 1
        kv_length = jnp.where((first < 0) & (parts["kv_length"] > 0), there, parts["kv_length"])
        # A row's tokens are its last ones: position = kv_length - (row's end - token's index).
        index = jnp.arange(self.layout.tokens, dtype=jnp.int32)
        real = index < query_start[-1]
        positions = jnp.where(real, index + (kv_length - query_start[1:])[row_of_token], 0)
        # Each group's by itself: XLA hands a kernel a part of an array where it lies, at whatever byte that is.
        held = jnp.arange(page_tables.shape[2], dtype=jnp.int32)[None] < parts["pages"][:, None]
        page_table = jnp.stack([jnp.where(held, tables[parts["slot"]], 0) for tables in page_tables])
        pages = page_table[:, row_of_token, jax.lax.div(positions, jnp.int32(size))]
        offsets = jax.lax.rem(positions, jnp.int32(size))
        flags, samples = parts["flags"] != 0, parts["samples"] != 0
        sampling = SamplingBatch(
            words=parts["options"],
            position=kv_length - parts["num_drafts"],
            slot=jnp.where(samples, parts["slot"], lengths.shape[0] - 1),
            flags=tuple(flags[place] for place in range(self.layout.flags)),
            options=options,
        )
        return DeviceBatch(
            tokens=tokens,
            positions=positions,
            kv_slots=jnp.where(real[None], pages * size + offsets[None], 0),
            query_start=query_start,
            kv_length=kv_length,
            page_table=page_table,
            slots=parts["slot"],
            rows=RowBatch(sampling, samples, parts["num_drafts"]),
            states=self._states(parts, parts["kv_length"] - kv_length),
            row_of_token=row_of_token,
            adapter_tokens=parts["adapter_tokens"],
        )

    def _states(self, parts: dict[str, Any], refused: jax.Array) -> jax.Array:
        """Where rows have their states, once it is known how many drafts of the row before were refused, int32[R]."""
        words: jax.Array = parts["states"]
        return words.at[:, 0].add(-refused) if self.layout.states else words


def make_batch(
    plan: Plan,
    bucket: Bucket,
    changes: TableChanges,
    *,
    table_shape: tuple[int, int, int],
    page_size: int,
    options: RowOptions = STANDARD,
    adapters: int = 0,
    state_words: int = 0,
) -> PackedBatch:
    """Pad a plan.

    Args:
        plan: what is padded.
        bucket: to what.
        changes: of page tables; those that are put whole do not come with the batch.
        table_shape: that of all tables, [groups,slots+1,M].
        page_size: S.
        options: what the words of a row are.
        adapters: slots of adapters, which count where the bucket is for rows that have some.
        state_words: what every row says of recurrent states.
    """
    groups, slots, _ = table_shape
    adapters = adapters if bucket.adapted else 0
    most = most_changes(bucket.tokens, bucket.rows, groups, page_size)
    layout = BatchLayout(bucket.tokens, bucket.rows, most, page_size, options.size, len(options.needs), adapters, state_words)
    words = np.zeros(layout.size, np.int32)
    parts = layout.parts(words)
    rows, tokens = plan.num_rows, plan.num_tokens
    parts["row_of_token"][:tokens] = np.repeat(np.arange(rows), np.diff(plan.query_start))
    entries = changes.entries
    parts["changes"][: len(entries)] = entries
    parts["pages"][:rows] = changes.held
    parts["changes"][len(entries) :, 0] = math.prod(table_shape)  # which is none of its places
    parts["tokens"][:tokens] = plan.tokens
    parts["query_start"][: rows + 1] = plan.query_start
    parts["query_start"][rows + 1 :] = tokens
    parts["kv_length"][:rows] = plan.kv_length
    parts["samples"][:rows] = plan.samples
    parts["num_drafts"][:rows] = plan.num_drafts
    parts["options"][:rows] = plan.sampling
    parts["options"][rows:] = options.neutral
    parts["slot"][:rows] = plan.slots
    parts["slot"][rows:] = slots - 1  # the spare one
    if plan.adapters is not None:
        with_one = plan.adapters >= 0
        parts["adapter_tokens"][:] = np.bincount(plan.adapters[with_one], np.diff(plan.query_start)[with_one], minlength=adapters)
    parts["states"][:, STATE_WORDS:] = NO_STATE
    if plan.states is not None:
        parts["states"][:rows] = plan.states
    parts["flags"][:] = options.flags(plan.sampling, plan.samples)  # rows that do not sample need nothing
    return PackedBatch(words, layout)  # type: ignore[arg-type]  # numpy's until the step copies it
