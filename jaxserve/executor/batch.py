"""A plan padded to a bucket: what one step reads, as one array. Warm-up and serving both come through `make_batch`.

Padding rows have no queries, no keys and the spare slot; padding tokens write to the null page. Every array that a program is
given costs the host tens of microseconds, so all of a batch is one, and the program takes it apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from jaxserve.executor.buckets import Bucket
from jaxserve.executor.flat_params import FlatParams
from jaxserve.models.binding import Params
from jaxserve.sampling.batch import SamplingBatch
from jaxserve.scheduler.plan import SUPPRESS_WIDTH, Ints, Plan

_NUMBERS = ("temperature", "top_k", "top_p", "min_p", "presence", "frequency", "repetition")
_FLOATS = frozenset(_NUMBERS) - {"top_k"}
_FLAGS = ("any_random", "any_truncated", "any_penalty", "any_suppressed", "any_logprobs")
# What says that a row asks for nothing, as the words of a batch: zeros, but ones for top_p and repetition.
_NEUTRAL = np.array([[0], [0], [1], [0], [0], [0], [1]], np.float32).view(np.int32)

State = TypeVar("State")
Packed = TypeVar("Packed")


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
    """

    tokens: int
    rows: int
    groups: int
    max_pages: int

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
    tokens, rows, groups, max_pages = layout
    shapes: dict[str, tuple[int, ...]] = {
        "tokens": (tokens,),
        "positions": (tokens,),
        "kv_slots": (groups, tokens),
        "query_start": (rows + 1,),
        "kv_length": (rows,),
        "page_table": (groups, rows, max_pages),
        "samples": (rows,),
        "numbers": (len(_NUMBERS), rows),
        "key": (rows, 2),
        "suppress": (rows, SUPPRESS_WIDTH),
        "has_bias": (rows,),
        "slot": (rows,),
        "flags": (len(_FLAGS),),
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

    def unpacked(self) -> DeviceBatch:
        """The batch, of numpy's arrays or of jax's as the words are."""
        parts = self.layout.parts(self.words)
        numbers = dict(zip(_NUMBERS, parts["numbers"], strict=True))
        arrays: dict[str, Any] = {name: _as(value, np.float32) if name in _FLOATS else value for name, value in numbers.items()}
        arrays |= {name: flag != 0 for name, flag in zip(_FLAGS, parts["flags"], strict=True)}
        sampling = SamplingBatch(
            key=_as(parts["key"], np.uint32),
            suppress=parts["suppress"],
            has_bias=parts["has_bias"] != 0,
            slot=parts["slot"],
            position=parts["kv_length"],
            **arrays,
        )
        names = ("tokens", "positions", "kv_slots", "query_start", "kv_length", "page_table")
        return DeviceBatch(sampling=sampling, samples=parts["samples"] != 0, **{name: parts[name] for name in names})


def on_packed(
    of_parts: Callable[[Params, State, DeviceBatch], tuple[State, Packed]],
) -> Callable[[FlatParams, State, PackedBatch], tuple[State, Packed]]:
    """A step that takes its weights and its batch apart itself."""

    def step(params: FlatParams, state: State, batch: PackedBatch) -> tuple[State, Packed]:
        return of_parts(params.tree(), state, batch.unpacked())

    return step


def make_batch(plan: Plan, bucket: Bucket, *, max_pages: int, page_size: int, spare_slot: int, groups: int = 1) -> PackedBatch:
    """Pad a plan. `max_pages` is M, the pages of the longest sequence in each of the `groups` of layers."""
    layout = BatchLayout(bucket.tokens, bucket.rows, groups, max_pages)
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
    _fill_sampling(plan, parts, spare_slot)
    return PackedBatch(words, layout)  # type: ignore[arg-type]  # numpy's until the step copies it


def _fill_sampling(plan: Plan, parts: dict[str, Ints], spare_slot: int) -> None:
    """Pad the sampling parameters; flags say what no row needs. Rows that do not sample count as padding."""
    given, rows, samples = plan.sampling, plan.num_rows, plan.samples
    numbers = parts["numbers"]
    numbers[:, rows:] = _NEUTRAL
    for row, name in zip(numbers, _NUMBERS, strict=True):
        row[:rows] = getattr(given, name).view(np.int32)
    parts["key"][:rows] = given.key.view(np.int32)
    parts["suppress"][:rows] = given.suppress
    parts["suppress"][rows:] = -1
    parts["has_bias"][:rows] = samples & given.has_bias
    parts["slot"][:rows] = np.where(samples, plan.slots, spare_slot)
    parts["slot"][rows:] = spare_slot
    parts["flags"][:] = list(_needs(plan, numbers[:, :rows]))


def _needs(plan: Plan, numbers: Ints) -> Iterator[bool]:
    """What any row needs, in the order of the flags."""
    given, samples = plan.sampling, plan.samples
    asked = (numbers != _NEUTRAL) & samples
    random, penalties = asked[0], asked[4:]
    any_random = bool(random.any())
    yield any_random
    yield any_random and bool((asked[1:4] & random).any())
    yield bool(penalties.any())
    yield bool((samples & (given.suppress[:, 0] >= 0)).any())
    yield bool((samples & (given.num_logprobs >= 0)).any())


def _as(words: Any, dtype: type[np.float32] | type[np.uint32]) -> Any:
    """Words as numbers of another type of their size."""
    return words.view(dtype) if isinstance(words, np.ndarray) else jax.lax.bitcast_convert_type(words, dtype)
