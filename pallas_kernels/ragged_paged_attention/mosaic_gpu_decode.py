"""Decode in Mosaic GPU: one query a row, flash-decoding over the pages of its row.

A thread block is one warpgroup and takes one part of the keys of one row and KV head. The query heads of the KV head are
the rows of one wgmma, so a key is read from memory once for all of them. Pages come by TMA, whose source address is
looked up in the page table: nothing is gathered in memory. Memory bandwidth is the limit, so the shared memory is spent
on loads in flight: keys and values have rings of their own, each slot is asked for again as soon as its wgmma is done,
and two blocks share a multiprocessor where the head dim allows.

Each block leaves the sum of weighted values, the largest score and the sum of weights, for the caller to merge.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.ragged_paged_attention import mosaic_gpu_float8 as float8
from pallas_kernels.ragged_paged_attention import mosaic_gpu_softmax as tile
from pallas_kernels.ragged_paged_attention.mosaic_gpu_softmax import BLOCK_KEYS, WGMMA_ROWS, Options, Softmax


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
        options: scale, window and soft cap.
    """

    page_size: int
    kv_heads: int
    group: int
    dim: int
    splits: int
    key_slots: int
    value_slots: int
    options: Options


class Partial(NamedTuple):
    """What the parts of a row left: values f32 [I, K, N, G', D], largest and total f32 [I, K, N, 64]; base 2 logits.

    A part without keys leaves whatever was in memory, NaN included: `part_has_keys` tells.
    """

    values: jax.Array
    largest: jax.Array
    total: jax.Array


class Span(NamedTuple):
    """The keys that a thread block attends to, int32 scalars: those in [start, length), in blocks [block, block + blocks)."""

    start: jax.Array
    length: jax.Array
    block: jax.Array
    blocks: jax.Array


def span_of(length: jax.Array, part: jax.Array, shape: DecodeShape) -> Span:
    """Return part `part` of a row of `length` keys; broadcasts, so that it serves the kernel and its caller."""
    start = jnp.zeros_like(length) if shape.options.window is None else jnp.maximum(length - shape.options.window, 0)
    first = start // BLOCK_KEYS
    blocks = (length + (BLOCK_KEYS - 1)) // BLOCK_KEYS - first
    each = (blocks + (shape.splits - 1)) // shape.splits
    return Span(start, length, first + part * each, jnp.clip(blocks - part * each, 0, each))


def part_has_keys(length: jax.Array, shape: DecodeShape) -> jax.Array:
    """Return bool [I, N] for lengths int32 [I]."""
    part = jnp.arange(shape.splits, dtype=jnp.int32)[None, :]
    return span_of(length[:, None], part, shape).blocks > 0


def paged_decode(
    q: jax.Array,
    kv_pages: jax.Array,
    kv_scales: jax.Array | None,
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
        kv_pages: [L, P, 2, K, S, D] in q's dtype, or float8.
        kv_scales: [L, P, 2, K, S] f16 or f32 for float8, else None.
        page_table: int32 [R, M].
        row: int32 [I], the row of each item.
        length: int32 [I], keys that the item attends to; 0 for an item that is skipped.
        layer: int32 [1]; an array, so that all layers of a model share one kernel.
        shape: the static arguments.
        interpret: `mosaic.interpreter()` to run on CPUs, False to compile.
    """
    items = q.shape[0]
    dtype, dim = q.dtype, shape.dim
    pages = kv_pages.reshape(-1, shape.page_size, dim)  # TMA addresses 5 dimensions, tiles included
    scales = None if kv_scales is None else kv_scales.reshape(-1, shape.page_size)
    stats = jax.ShapeDtypeStruct((items, shape.kv_heads, shape.splits, WGMMA_ROWS), jnp.float32)
    values = jax.ShapeDtypeStruct((items, shape.kv_heads, shape.splits, shape.group, dim), jnp.float32)
    run = plgpu.kernel(
        partial(_kernel, shape=shape, num_pages=kv_pages.shape[1]),
        out_type=(values, stats, stats),
        grid=(shape.splits, shape.kv_heads, items),
        grid_names=("part", "head", "item"),
        scratch_types=_scratch(shape, dtype, kv_pages.dtype, None if scales is None else scales.dtype),
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name="paged_decode",
        interpret=interpret,
    )
    return Partial(*run(q, pages, scales, page_table, row, length, layer))


def _scratch(shape: DecodeShape, dtype: Any, kv_dtype: Any, scales_dtype: Any) -> list[Any]:
    """Describe the shared memory, in the order of `_Refs`. The sums leave through memory that by then is free."""
    dim, pages = shape.dim, BLOCK_KEYS // shape.page_size
    leaving = [mosaic.tiled((WGMMA_ROWS, dim), jnp.float32), plgpu.SMEM((2, WGMMA_ROWS), jnp.float32)]
    if scales_dtype is None:
        value_dtype, scales, loads_of_keys = dtype, None, pages
        keys, values = (mosaic.tiled((slots, BLOCK_KEYS, dim), kv_dtype) for slots in (shape.key_slots, shape.value_slots))
        keys_or_sums, wide_or_sums = plgpu.RefUnion(keys, leaving), None
    else:
        value_dtype, loads_of_keys = float8.VALUE_DTYPE, 3 * pages
        scales = plgpu.SMEM((shape.key_slots, 2, BLOCK_KEYS), scales_dtype)
        keys_or_sums, values = (float8.numbers(slots, dim, kv_dtype) for slots in (shape.key_slots, shape.value_slots))
        wide = [mosaic.tiled((BLOCK_KEYS, dim), each) for each in (dtype, value_dtype)]
        wide_or_sums = plgpu.RefUnion(wide, leaving)
    return [
        mosaic.tiled((WGMMA_ROWS, dim), dtype),
        mosaic.tiled((WGMMA_ROWS, BLOCK_KEYS), value_dtype, mosaic.swizzle_bytes(dim, dtype)),
        keys_or_sums,
        values,
        scales,
        wide_or_sums,
        plgpu.Barrier(),
        plgpu.Barrier(num_arrivals=loads_of_keys, num_barriers=shape.key_slots),
        plgpu.Barrier(num_arrivals=pages, num_barriers=shape.value_slots),
    ]


class _Refs(NamedTuple):
    """Memory of the kernel, in the order of its arguments: inputs, outputs, scratch.

    A cache in float8 has `scales`, and tiles that its numbers are widened into; another has neither.
    """

    q: Any
    pages: Any
    scales: Any
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
    key_scales: Any
    wide_or_sums: Any
    q_loaded: Any
    keys_loaded: Any
    values_loaded: Any

    @property
    def keys(self) -> Any:
        """Slots of keys, as they are stored."""
        return self.keys_or_sums[0] if self.scales is None else self.keys_or_sums

    @property
    def leaving(self) -> Any:
        """What the results leave through: sums, and the largest and the total."""
        return (self.keys_or_sums if self.scales is None else self.wide_or_sums)[1]


def _kernel(*arguments: Any, shape: DecodeShape, num_pages: int) -> None:
    refs = _Refs(*arguments)
    part, head, item = (lax.axis_index(axis) for axis in ("part", "head", "item"))
    span = span_of(refs.length[item], part, shape)

    @pl.when(span.blocks > 0)
    def _work() -> None:
        state = _attend(refs, span, item, head, shape, num_pages)
        sums, stats = refs.leaving
        for columns, values in zip(tile.parts_of(shape.dim), state.values, strict=True):
            sums[:, columns] = values
        stats[0] = state.largest
        stats[1] = state.total
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(sums.at[pl.ds(0, shape.group)], refs.values_out.at[item, head, part])
        plgpu.copy_smem_to_gmem(stats.at[0], refs.largest_out.at[item, head, part])
        plgpu.copy_smem_to_gmem(stats.at[1], refs.total_out.at[item, head, part])
        plgpu.wait_smem_to_gmem(0)


class _Loads(NamedTuple):
    """How a thread block loads from its row's pages."""

    refs: _Refs
    shape: DecodeShape
    span: Span
    row: jax.Array
    head: jax.Array
    layer_start: jax.Array
    last_page: jax.Array

    def page_ids(self, block: jax.Array) -> tuple[jax.Array, ...]:
        """Look up the pages of a block of the span; past the row's end its last page, so that every slot awaits as many loads."""
        pages = BLOCK_KEYS // self.shape.page_size
        first = (self.span.block + block) * pages
        return tuple(self.refs.table[self.row, jnp.minimum(first + i, self.last_page)] for i in range(pages))

    def keys(self, ids: tuple[jax.Array, ...], slot: Any) -> None:
        """Load the keys of pages into a slot, and the scales of keys and values if there are any."""
        refs, size = self.refs, self.shape.page_size
        self._start(ids, 0, refs.keys.at[slot], refs.keys_loaded.at[slot])
        if refs.scales is not None:
            for half in range(2):
                for i, page in enumerate(ids):
                    into = refs.key_scales.at[slot, half]
                    float8.load_scales(refs.scales, self._page(page, half), into, i * size, refs.keys_loaded.at[slot])

    def values(self, ids: tuple[jax.Array, ...], slot: Any) -> None:
        """Load the values of pages into a slot."""
        self._start(ids, 1, self.refs.values.at[slot], self.refs.values_loaded.at[slot])

    def _start(self, ids: tuple[jax.Array, ...], half: int, into: Any, barrier: Any) -> None:
        size = self.shape.page_size
        for i, page in enumerate(ids):
            plgpu.copy_gmem_to_smem(self.refs.pages.at[self._page(page, half)], into.at[pl.ds(i * size, size)], barrier)

    def _page(self, page: jax.Array, half: int) -> jax.Array:
        return (self.layer_start + page * 2 + half) * self.shape.kv_heads + self.head


def _attend(refs: _Refs, span: Span, item: jax.Array, head: jax.Array, shape: DecodeShape, num_pages: int) -> Softmax:
    last_page = lax.div(span.length - 1, jnp.int32(shape.page_size))
    loads = _Loads(refs, shape, span, refs.row[item], head, refs.layer[0] * (2 * num_pages), last_page)
    wide_keys, wide_values = (None, None) if refs.wide_or_sums is None else refs.wide_or_sums[0]
    plgpu.copy_gmem_to_smem(refs.q.at[item, head], refs.q_tile.at[pl.ds(0, shape.group)], refs.q_loaded)
    first_ids = [loads.page_ids(jnp.int32(block)) for block in range(max(shape.key_slots, shape.value_slots) + 1)]
    for load, slots in ((loads.keys, shape.key_slots), (loads.values, shape.value_slots)):
        for slot in range(slots):
            pl.when(slot < span.blocks)(partial(load, first_ids[slot], slot=slot))
    plgpu.barrier_wait(refs.q_loaded)

    def step(block: jax.Array, carry: tuple[Softmax, tuple[jax.Array, ...], tuple[jax.Array, ...]]) -> Any:
        state, key_ids, value_ids = carry
        # The page ids of the loads after these are asked for now: by then they have arrived.
        next_ids = loads.page_ids(block + shape.key_slots + 1), loads.page_ids(block + shape.value_slots + 1)
        slot = lax.rem(block, jnp.int32(shape.key_slots))
        plgpu.barrier_wait(refs.keys_loaded.at[slot])
        scales = None if refs.key_scales is None else refs.key_scales.at[slot]
        keys = _operand(refs.keys.at[slot], wide_keys)
        logits = tile.logits(refs.q_tile, keys, shape.options, scales)
        refill = pl.when(block + shape.key_slots < span.blocks)
        if scales is None:
            refill(partial(loads.keys, key_ids, slot=slot))
        first_key = (span.block + block) * BLOCK_KEYS
        state, fade = tile.absorb(state, _mask(logits, first_key, span), refs.weights, scales)
        if scales is not None:  # by now every warp has read them
            refill(partial(loads.keys, key_ids, slot=slot))
        slot = lax.rem(block, jnp.int32(shape.value_slots))
        plgpu.barrier_wait(refs.values_loaded.at[slot])
        values = _operand(refs.values.at[slot], wide_values)
        at_an_end = (first_key < span.start) | (first_key + BLOCK_KEYS > span.length)
        pl.when(at_an_end)(partial(tile.clear_unused, values, first_key, span.start, span.length))
        state = tile.add_values(state, fade, refs.weights, values)
        pl.when(block + shape.value_slots < span.blocks)(partial(loads.values, value_ids, slot=slot))
        return state, *next_ids

    carry = (tile.before_any_key(shape.dim), first_ids[shape.key_slots], first_ids[shape.value_slots])
    state: Softmax = lax.fori_loop(0, span.blocks, step, carry)[0]
    return state


def _operand(stored: Any, wide: Any) -> Any:
    """What wgmma multiplies with: keys or values as they are stored, or in the tile that they are widened into."""
    if wide is None:
        return stored
    float8.widen(stored, wide)
    return wide


def _mask(logits: jax.Array, first_key: jax.Array, span: Span) -> jax.Array:
    key = tile.iota((WGMMA_ROWS, BLOCK_KEYS), 1) + first_key
    return jnp.where((key >= span.start) & (key < span.length), logits, tile.MASKED)
