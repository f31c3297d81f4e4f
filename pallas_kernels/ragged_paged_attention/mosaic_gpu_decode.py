"""Decode in Mosaic GPU: one query a row, flash-decoding over the pages of its row.

A thread block is one warpgroup and takes one part of the keys of one row and KV head. The query heads of the KV head are
the rows of one wgmma, so a key is read from memory once for all of them. Pages come by TMA, whose source address is
looked up in the page table: nothing is gathered in memory. Memory bandwidth is the limit, so the shared memory is spent
on loads in flight: keys and values have rings of their own, each slot is asked for again as soon as its wgmma is done,
and two blocks share a multiprocessor where the head dim allows.

Each block leaves the sum of weighted values, the largest score and the sum of weights, for the caller to merge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic

BLOCK_KEYS = 64  # keys of a slot of the rings: the smallest tile that wgmma's layouts of 16-bit registers allow
WGMMA_ROWS = 64
LOG2_E = math.log2(math.e)
# Scores are masked with this and not with -inf, which cannot be subtracted from itself.
MASKED = -1e30


@dataclass(frozen=True)
class DecodeShape:
    """Static arguments of the kernel.

    Attributes:
        page_size: S; divides BLOCK_KEYS.
        kv_heads: K.
        group: rows of a query tile, G padded to a multiple of 8.
        dim: D.
        splits: parts that the keys of a row are divided into.
        key_slots: blocks of keys in shared memory.
        value_slots: blocks of values in shared memory.
        scale: multiplies the scores.
        window: keys that a query attends to at most; None for all.
        soft_cap: bound of the scores; None for none.
    """

    page_size: int
    kv_heads: int
    group: int
    dim: int
    splits: int
    key_slots: int
    value_slots: int
    scale: float
    window: int | None
    soft_cap: float | None


class Partial(NamedTuple):
    """What the parts of a row left: values f32 [I, K, N, G', D], largest and total f32 [I, K, N, 64]; base 2 logits.

    A part without keys leaves whatever was in memory, NaN included: `part_has_keys` tells.
    """

    values: jax.Array
    largest: jax.Array
    total: jax.Array


class Span(NamedTuple):
    """The keys that a thread block attends to, int32 scalars: those in [start, length), in blocks [block, block + count)."""

    start: jax.Array
    length: jax.Array
    block: jax.Array
    count: jax.Array


def span_of(length: jax.Array, part: jax.Array, shape: DecodeShape) -> Span:
    """Return part `part` of a row of `length` keys; broadcasts, so that it serves the kernel and its caller."""
    start = jnp.zeros_like(length) if shape.window is None else jnp.maximum(length - shape.window, 0)
    first = start // BLOCK_KEYS
    blocks = (length + (BLOCK_KEYS - 1)) // BLOCK_KEYS - first
    each = (blocks + (shape.splits - 1)) // shape.splits
    return Span(start, length, first + part * each, jnp.clip(blocks - part * each, 0, each))


def part_has_keys(length: jax.Array, shape: DecodeShape) -> jax.Array:
    """Return bool [I, N] for lengths int32 [I]."""
    part = jnp.arange(shape.splits, dtype=jnp.int32)[None, :]
    return span_of(length[:, None], part, shape).count > 0


def paged_decode(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    row: jax.Array,
    length: jax.Array,
    layer: jax.Array,
    *,
    shape: DecodeShape,
    interpret: Any,
) -> Partial:
    """Attend from one query an item to the first keys of a row.

    Args:
        q: [I, K, G', D] bf16 or f16; rows that pad G may hold anything.
        kv_pages: [L, P, 2, K, S, D] in q's dtype.
        page_table: int32 [R, M].
        row: int32 [I], the row of each item.
        length: int32 [I], keys that the item attends to; 0 for an item that is skipped.
        layer: int32 [1]; an array, so that all layers of a model share one kernel.
        shape: the static arguments.
        interpret: `mosaic.interpreter()` to run on CPUs, False to compile.
    """
    items = q.shape[0]
    dtype, dim = q.dtype, shape.dim
    swizzle = mosaic.swizzle_bytes(dim, dtype)
    pages = kv_pages.reshape(-1, shape.page_size, dim)  # TMA addresses 5 dimensions, tiles included
    stats = jax.ShapeDtypeStruct((items, shape.kv_heads, shape.splits, WGMMA_ROWS), jnp.float32)
    values = jax.ShapeDtypeStruct((items, shape.kv_heads, shape.splits, shape.group, dim), jnp.float32)
    arrivals = BLOCK_KEYS // shape.page_size
    run = plgpu.kernel(
        partial(_kernel, shape=shape, num_pages=kv_pages.shape[1]),
        out_type=(values, stats, stats),
        grid=(shape.splits, shape.kv_heads, items),
        grid_names=("part", "head", "item"),
        scratch_types=[
            mosaic.tiled((WGMMA_ROWS, dim), dtype),
            mosaic.tiled((WGMMA_ROWS, BLOCK_KEYS), dtype, swizzle),
            plgpu.RefUnion(
                # The sums leave through the memory of the keys, which by then is free.
                mosaic.tiled((shape.key_slots, BLOCK_KEYS, dim), dtype),
                [mosaic.tiled((WGMMA_ROWS, dim), jnp.float32), plgpu.SMEM((2, WGMMA_ROWS), jnp.float32)],
            ),
            mosaic.tiled((shape.value_slots, BLOCK_KEYS, dim), dtype),
            plgpu.Barrier(),
            plgpu.Barrier(num_arrivals=arrivals, num_barriers=shape.key_slots),
            plgpu.Barrier(num_arrivals=arrivals, num_barriers=shape.value_slots),
        ],
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=interpret,
    )
    return Partial(*run(q, pages, page_table, row, length, layer))


class _Refs(NamedTuple):
    """Memory of the kernel, in the order of its arguments: inputs, outputs, scratch."""

    q: Any
    pages: Any
    table: Any
    row: Any
    length: Any
    layer: Any
    values_out: Any
    largest_out: Any
    total_out: Any
    q_tile: Any
    weights: Any
    keys_or_sums: Any
    values: Any
    q_loaded: Any
    keys_loaded: Any
    values_loaded: Any


class _State(NamedTuple):
    """The online softmax of a tile of rows, in registers: f32 [64, D], [64], [64]."""

    values: jax.Array
    largest: jax.Array
    total: jax.Array


def _kernel(*arguments: Any, shape: DecodeShape, num_pages: int) -> None:
    refs = _Refs(*arguments)
    part, head, item = (lax.axis_index(axis) for axis in ("part", "head", "item"))
    span = span_of(refs.length[item], part, shape)

    @pl.when(span.count > 0)
    def _work() -> None:
        state = _attend(refs, span, item, head, shape, num_pages)
        _, (sums, stats) = refs.keys_or_sums
        sums[...] = state.values
        stats[0] = state.largest
        stats[1] = state.total
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(sums.at[pl.ds(0, shape.group)], refs.values_out.at[item, head, part])
        plgpu.copy_smem_to_gmem(stats.at[0], refs.largest_out.at[item, head, part])
        plgpu.copy_smem_to_gmem(stats.at[1], refs.total_out.at[item, head, part])
        plgpu.wait_smem_to_gmem(0)


def _attend(refs: _Refs, span: Span, item: jax.Array, head: jax.Array, shape: DecodeShape, num_pages: int) -> _State:
    keys, _ = refs.keys_or_sums
    row, layer = refs.row[item], refs.layer[0]
    last_page = lax.div(span.length - 1, jnp.int32(shape.page_size))

    def page_ids(block: jax.Array) -> tuple[jax.Array, ...]:
        # Past the row's end its last page is loaded again, so that every slot waits for the same number of loads.
        first = (span.block + block) * (BLOCK_KEYS // shape.page_size)
        return tuple(refs.table[row, jnp.minimum(first + i, last_page)] for i in range(BLOCK_KEYS // shape.page_size))

    def load(ids: tuple[jax.Array, ...], half: int, slots: Any, barriers: Any, slot: Any) -> None:
        for i, page in enumerate(ids):
            plgpu.copy_gmem_to_smem(
                refs.pages.at[((layer * num_pages + page) * 2 + half) * shape.kv_heads + head],
                slots.at[slot, pl.ds(i * shape.page_size, shape.page_size)],
                barriers.at[slot],
            )

    load_keys = partial(load, half=0, slots=keys, barriers=refs.keys_loaded)
    load_values = partial(load, half=1, slots=refs.values, barriers=refs.values_loaded)
    plgpu.copy_gmem_to_smem(refs.q.at[item, head], refs.q_tile.at[pl.ds(0, shape.group)], refs.q_loaded)
    first_ids = [page_ids(jnp.int32(i)) for i in range(max(shape.key_slots, shape.value_slots) + 1)]
    for start, slots in ((load_keys, shape.key_slots), (load_values, shape.value_slots)):
        for slot in range(slots):
            pl.when(slot < span.count)(partial(start, first_ids[slot], slot=slot))
    plgpu.barrier_wait(refs.q_loaded)

    def step(block: jax.Array, carry: tuple[_State, tuple[jax.Array, ...], tuple[jax.Array, ...]]) -> Any:
        state, key_ids, value_ids = carry
        # The page ids of the loads after these are read now: by then they have arrived.
        next_key_ids, next_value_ids = page_ids(block + shape.key_slots + 1), page_ids(block + shape.value_slots + 1)
        slot = lax.rem(block, jnp.int32(shape.key_slots))
        plgpu.barrier_wait(refs.keys_loaded.at[slot])
        scores = _scores(refs.q_tile, keys.at[slot], shape)
        pl.when(block + shape.key_slots < span.count)(partial(load_keys, key_ids, slot=slot))
        first_key = (span.block + block) * BLOCK_KEYS
        state, fade = _absorb(state, _mask(scores, first_key, span), refs.weights)
        slot = lax.rem(block, jnp.int32(shape.value_slots))
        plgpu.barrier_wait(refs.values_loaded.at[slot])
        _clear_unused(refs.values.at[slot], first_key, span)
        added = _weigh(refs.weights, refs.values.at[slot], shape)
        pl.when(block + shape.value_slots < span.count)(partial(load_values, value_ids, slot=slot))
        values = state.values * lax.broadcast_in_dim(fade, state.values.shape, [0]) + added
        return state._replace(values=values), next_key_ids, next_value_ids

    rows = plgpu.Layout.WGMMA.reduce(1)
    state = _State(
        plgpu.layout_cast(jnp.zeros((WGMMA_ROWS, shape.dim), jnp.float32), plgpu.Layout.WGMMA),
        plgpu.layout_cast(jnp.full((WGMMA_ROWS,), MASKED, jnp.float32), rows),
        plgpu.layout_cast(jnp.zeros((WGMMA_ROWS,), jnp.float32), rows),
    )
    carry = (state, first_ids[shape.key_slots], first_ids[shape.value_slots])
    return lax.fori_loop(0, span.count, step, carry)[0]


def _scores(q: Any, keys: Any, shape: DecodeShape) -> jax.Array:
    """Return base 2 logits f32 [64, BLOCK_KEYS]."""

    def multiply(accumulator: Any) -> jax.Array:
        plgpu.wgmma(accumulator, q, keys.transpose((1, 0)))
        return accumulator[...]

    scores = pl.run_scoped(multiply, plgpu.ACC((WGMMA_ROWS, BLOCK_KEYS), jnp.float32))
    if shape.soft_cap is None:
        return scores * (shape.scale * LOG2_E)
    # tanh from exp2: the hardware's own is off by 5e-4, which the cap multiplies.
    grown = jnp.exp2(scores * (2.0 * LOG2_E * shape.scale / shape.soft_cap))
    return (shape.soft_cap * LOG2_E) * (1.0 - 2.0 / (grown + 1.0))


def _mask(scores: jax.Array, first_key: jax.Array, span: Span) -> jax.Array:
    key = plgpu.broadcasted_iota(jnp.int32, scores.shape, 1, layout=plgpu.Layout.WGMMA) + first_key
    return jnp.where((key >= span.start) & (key < span.length), scores, MASKED)


def _absorb(state: _State, scores: jax.Array, weights: Any) -> tuple[_State, jax.Array]:
    """Leave the weights of `scores` in shared memory; return the state without its values' change, and their factor."""
    largest = jnp.maximum(state.largest, scores.max(axis=1))
    fade = jnp.exp2(state.largest - largest)
    weight = jnp.exp2(scores - lax.broadcast_in_dim(largest, scores.shape, [0]))
    weights[...] = weight.astype(weights.dtype)
    plgpu.commit_smem()
    return _State(state.values, largest, state.total * fade + weight.sum(axis=1)), fade


def _clear_unused(values: Any, first_key: jax.Array, span: Span) -> None:
    """Put zeros in place of values outside the span: they may be NaN, which a weight of 0 does not cancel."""

    @pl.when((first_key < span.start) | (first_key + BLOCK_KEYS > span.length))
    def _clear() -> None:
        loaded = plgpu.load(values, layout=plgpu.Layout.WGMMA)
        key = plgpu.broadcasted_iota(jnp.int32, loaded.shape, 0, layout=plgpu.Layout.WGMMA) + first_key
        values[...] = jnp.where((key >= span.start) & (key < span.length), loaded, jnp.zeros_like(loaded))
        plgpu.commit_smem()


def _weigh(weights: Any, values: Any, shape: DecodeShape) -> jax.Array:
    """Return weights @ values, f32 [64, D]."""

    def multiply(accumulator: Any) -> jax.Array:
        plgpu.wgmma(accumulator, weights, values)
        return accumulator[...]

    return pl.run_scoped(multiply, plgpu.ACC((WGMMA_ROWS, shape.dim), jnp.float32))
