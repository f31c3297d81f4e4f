"""A plan padded to a bucket: what one step reads, as one array. Warm-up and serving both come through `make_batch`.

Padding rows have no queries, no keys and the spare slot; padding tokens write to the null page. Every array that a program is
given costs the host tens of microseconds, so all of a batch is one, and the program takes it apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxserve.sampling.batch import SamplingBatch
from jaxserve.sampling.options import STANDARD, RowOptions
from jaxserve.step.buckets import Bucket
from jaxserve.step.plan import Ints, Plan


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
        sampling: parameters, [R].
        samples: bool[R], rows that choose a token.
    """

    tokens: jax.Array
    positions: jax.Array
    kv_slots: jax.Array
    query_start: jax.Array
    kv_length: jax.Array
    page_table: jax.Array
    sampling: SamplingBatch
    samples: jax.Array


class BatchLayout(NamedTuple):
    """Sizes of a batch, which say where what is in its words.

    Attributes:
        tokens: T.
        rows: R.
        groups: of layers.
        max_pages: M, pages of the longest sequence in each of the groups.
        words: W, of a row's options.
        flags: what rows can need.
    """

    tokens: int
    rows: int
    groups: int
    max_pages: int
    words: int
    flags: int

    @property
    def size(self) -> int:
        """Words in all."""
        end: int = _places(self)["flags"][0].stop
        return end

    def parts(self, words: Any) -> dict[str, Any]:
        """The parts of an array of words; of numpy's they are views."""
        return {name: words[place].reshape(shape) for name, (place, shape) in _places(self).items()}


@lru_cache(maxsize=1024)  # more than a grid has buckets
def _places(layout: BatchLayout) -> dict[str, tuple[slice, tuple[int, ...]]]:
    """The words of each part, and its shape."""
    tokens, rows, groups, max_pages, words, flags = layout
    shapes: dict[str, tuple[int, ...]] = {
        "tokens": (tokens,),
        "positions": (tokens,),
        "kv_slots": (groups, tokens),
        "query_start": (rows + 1,),
        "kv_length": (rows,),
        "page_table": (groups, rows, max_pages),
        "samples": (rows,),
        "options": (rows, words),
        "slot": (rows,),
        "flags": (flags,),
    }
    ends = list(accumulate(map(math.prod, shapes.values())))
    return {name: (slice(end - math.prod(shape), end), shape) for (name, shape), end in zip(shapes.items(), ends, strict=True)}


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

    def unpacked(self, options: RowOptions = STANDARD) -> DeviceBatch:
        """The batch, of numpy's arrays or of jax's as the words are."""
        parts = self.layout.parts(self.words)
        flags = parts["flags"] != 0
        sampling = SamplingBatch(
            words=parts["options"],
            position=parts["kv_length"],
            slot=parts["slot"],
            flags=tuple(flags[place] for place in range(self.layout.flags)),
            options=options,
        )
        names = ("tokens", "positions", "kv_slots", "query_start", "kv_length", "page_table")
        return DeviceBatch(sampling=sampling, samples=parts["samples"] != 0, **{name: parts[name] for name in names})


def make_batch(
    plan: Plan,
    bucket: Bucket,
    *,
    max_pages: int,
    page_size: int,
    spare_slot: int,
    groups: int = 1,
    options: RowOptions = STANDARD,
) -> PackedBatch:
    """Pad a plan. `max_pages` is M, the pages of the longest sequence in each of the `groups` of layers."""
    layout = BatchLayout(bucket.tokens, bucket.rows, groups, max_pages, options.size, len(options.needs))
    words = np.zeros(layout.size, np.int32)
    parts = layout.parts(words)
    rows, tokens = plan.num_rows, plan.num_tokens
    if tokens == rows:  # no row is without a token
        row_of_token = np.arange(rows)
        positions: Ints = plan.kv_length - np.int32(1)
    else:
        row_of_token = np.repeat(np.arange(rows), np.diff(plan.query_start))
        # A row's tokens are its last ones: position = kv_length - (row's end - token's index).
        before: Ints = plan.kv_length - plan.query_start[1:]
        positions = np.arange(tokens, dtype=np.int32)
        positions += before[row_of_token]
    columns, offsets = np.divmod(positions, np.int32(page_size))
    for group in range(groups):
        pages = plan.page_table[:, group::groups]
        parts["page_table"][group, :rows, : pages.shape[1]] = pages
        parts["kv_slots"][group, :tokens] = pages[row_of_token, columns] * page_size + offsets
    parts["tokens"][:tokens] = plan.tokens
    parts["positions"][:tokens] = positions
    parts["query_start"][: rows + 1] = plan.query_start
    parts["query_start"][rows + 1 :] = tokens
    parts["kv_length"][:rows] = plan.kv_length
    parts["samples"][:rows] = plan.samples
    parts["options"][:rows] = plan.sampling
    parts["options"][rows:] = options.neutral
    parts["slot"][:rows] = np.where(plan.samples, plan.slots, spare_slot)
    parts["slot"][rows:] = spare_slot
    parts["flags"][:] = options.flags(plan.sampling, plan.samples)  # rows that do not sample need nothing
    return PackedBatch(words, layout)  # type: ignore[arg-type]  # numpy's until the step copies it
