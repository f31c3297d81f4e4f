"""Decode in Mosaic GPU: few queries a row, flash-decoding over the pages of their rows by persistent thread blocks.

A worker is a warpgroup that computes. It takes its share of the batch's keys (mosaic_gpu_work.py), a piece of a segment after
the other: queries of a row times the query heads of a KV head are the rows of one wgmma, so a key is read from memory once
for all of them. A thread block has as many workers as its shared memory allows, and a warpgroup of which one warp a worker
loads pages by TMA, whose source address is looked up in the page table: nothing is gathered in memory. Memory bandwidth is the
limit, so the shared memory is spent on loads in flight: rings of keys and of values, which run ahead into the next pieces.
Weights never leave the registers.

A piece leaves the sum of weighted values, the largest score and the sum of weights; mosaic_gpu_merge.py puts them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.ragged_paged_attention import mosaic_gpu_products as products
from pallas_kernels.ragged_paged_attention import mosaic_gpu_quantized as quantized
from pallas_kernels.ragged_paged_attention import mosaic_gpu_softmax as softmax
from pallas_kernels.ragged_paged_attention import mosaic_gpu_step_keys as step_keys
from pallas_kernels.ragged_paged_attention import mosaic_gpu_work as line
from pallas_kernels.ragged_paged_attention.mosaic_gpu_softmax import BLOCK_KEYS, WGMMA_ROWS, Sums
from pallas_kernels.ragged_paged_attention.mosaic_gpu_step_keys import StepKeys, StepShape
from pallas_kernels.ragged_paged_attention.mosaic_gpu_work import Keys, Piece, QueryTiles, Work, Workers
from pallas_kernels.ragged_paged_attention.options import AttentionOptions

LOADING_REGISTERS = 40  # of a thread that loads


@dataclass(frozen=True)
class DecodeShape:
    """Static arguments of the kernel.

    Attributes:
        page_size: S; divides BLOCK_KEYS.
        kv_heads: K.
        group: rows of a query in a tile, at least G.
        queries: of a tile at most; `group * queries` is a multiple of 8 up to 64.
        shared: KV heads whose query heads are a tile's rows; each uses its own, one behind the other. 1 unless `queries` is.
        dim: D.
        blocks: thread blocks.
        workers: of a thread block.
        least_blocks: of keys, see `Workers`.
        key_slots: blocks of keys of a worker in shared memory.
        value_slots: likewise of values.
        step: of the step's own keys, where they are not in the cache yet; a tile is then a token. None where they are.
    """

    page_size: int
    kv_heads: int
    group: int
    queries: int
    shared: int
    dim: int
    blocks: int
    workers: int
    least_blocks: int
    key_slots: int
    value_slots: int
    options: AttentionOptions
    step: StepShape | None = None

    @property
    def rows(self) -> int:
        return self.group * self.queries

    @property
    def all_workers(self) -> Workers:
        return Workers(self.blocks * self.workers, self.least_blocks)


class Partials(NamedTuple):
    """What pieces left, at `slot_of`, in groups of 8 rows of their tiles; base 2 logits.

    Attributes:
        values: f32 [rows // 8, slots, 8, D].
        sums: f32 [rows // 8, 2, slots, 8], largest logit and sum of weights.
    """

    values: jax.Array
    sums: jax.Array


def paged_decode(
    q: jax.Array | None,
    kv_pages: jax.Array,
    kv_scales: jax.Array | None,
    page_table: jax.Array,
    tiles: QueryTiles,
    work: Work,
    layer: jax.Array,
    keys: StepKeys | None,
    *,
    shape: DecodeShape,
    interpret: Any,
) -> tuple[Partials, jax.Array]:
    """Attend from the queries of each tile to the keys of its row, up to and including themselves.

    Args:
        q: [I, K / shared, rows, D] bf16 or f16; row r of a tile is head r % group of query r // group. Rows without one may
            hold anything. None with `keys`.
        kv_pages: [L, P, 2, K, S, D] in q's dtype, float8 or int8.
        kv_scales: [L, P, 2, K, S] bf16 or f32 for float8 or int8, else None.
        page_table: int32 [R, M].
        tiles: what the rows of q are.
        work: `plan` of the tiles for `shape.all_workers`.
        layer: int32 [1]; an array, so that all layers of a model share one kernel.
        keys: the step's own, with `shape.step`: token i is tile i. They are written to the cache.
        shape: the static arguments.
        interpret: `mosaic.interpreter()` to run on CPUs, False to compile.

    Returns:
        What the pieces left, and the cache.
    """
    stored = kv_pages.reshape(-1, shape.page_size, shape.dim)  # TMA addresses 5 dimensions, tiles included
    pages: Any = stored if keys is None else jax.new_ref(stored)
    scales = None if kv_scales is None else kv_scales.reshape(-1, shape.page_size)
    groups, slots = shape.rows // mosaic.ROW_TILE, line.slots(tiles.row.shape[0], shape.kv_heads, shape.all_workers)
    run = plgpu.kernel(
        partial(_kernel, shape=shape, num_pages=kv_pages.shape[1], interpreted=bool(interpret)),
        out_type=(
            jax.ShapeDtypeStruct((groups, slots, mosaic.ROW_TILE, shape.dim), jnp.float32),
            jax.ShapeDtypeStruct((groups, 2, slots, mosaic.ROW_TILE), jnp.float32),
        ),
        grid=(shape.blocks,),
        grid_names=("block",),
        num_threads=shape.workers + 1,
        thread_name="group",
        scratch_types=_scratch(
            shape, kv_pages.dtype if q is None else q.dtype, kv_pages.dtype, None if scales is None else scales.dtype
        ),
        # Shared memory is ordered by commit_smem and mbarriers alone: see _attend.
        compiler_params=plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True, reduction_scratch_bytes=0),
        kernel_name="paged_decode",
        interpret=interpret,
    )
    partials = Partials(*run(q, pages, scales, page_table, *tiles[:3], *work, layer, keys))
    return partials, kv_pages if keys is None else jax.freeze(pages).reshape(kv_pages.shape)


def _scratch(shape: DecodeShape, dtype: Any, kv_dtype: Any, scales_dtype: Any) -> list[Any]:
    """Describe the shared memory, in the order of `_Refs`."""
    dim, workers, pages = shape.dim, shape.workers, BLOCK_KEYS // shape.page_size
    columns = softmax.leaving_columns(dim)
    leaving_swizzle = mosaic.swizzle_bytes(math.gcd(columns, dim), jnp.float32)
    key_slots, value_slots = workers * shape.key_slots, workers * shape.value_slots
    step = shape.step  # queries are rotated by whole tiles of shared memory
    swizzle = None if step is None else mosaic.swizzle_bytes(math.gcd(step.half, dim), dtype)
    if scales_dtype is None:
        scales, wide, loads_of_keys = None, None, pages
        keys = mosaic.tiled((key_slots, BLOCK_KEYS, dim), kv_dtype, swizzle)
        values = mosaic.tiled((value_slots, BLOCK_KEYS, dim), kv_dtype)
    else:
        loads_of_keys = 3 * pages
        scales = plgpu.SMEM((key_slots, 2, BLOCK_KEYS), scales_dtype)
        keys, values = (quantized.numbers(slots, dim, kv_dtype) for slots in (key_slots, value_slots))
        wide = [mosaic.tiled((workers, BLOCK_KEYS, dim), each) for each in (dtype, quantized.VALUE_DTYPE)]
    return [
        mosaic.tiled((workers, WGMMA_ROWS, dim), dtype, swizzle),
        mosaic.tiled((workers, WGMMA_ROWS, columns), jnp.float32, leaving_swizzle),
        plgpu.SMEM((workers, 2, WGMMA_ROWS), jnp.float32),
        keys,
        values,
        scales,
        wide,
        None if step is None else step_keys.written_rows(workers, dim, dtype),
        plgpu.Barrier(num_barriers=workers) if step is None else None,
        plgpu.Barrier(num_arrivals=loads_of_keys, num_barriers=key_slots),
        plgpu.Barrier(num_arrivals=pages, num_barriers=value_slots),
        plgpu.Barrier(num_barriers=key_slots),
        plgpu.Barrier(num_barriers=value_slots),
    ]


class _Refs(NamedTuple):
    """Memory of the kernel, in the order of its arguments: inputs, outputs, scratch.

    A cache in 8 bits has `scales`, and tiles that its numbers are widened into; another has neither. Keys of the step are `step`,
    and leave by `written`; without, `q` is the queries.
    """

    q: Any
    pages: Any
    scales: Any
    table: Any
    row: Any
    position: Any
    queries: Any
    end: Any
    tile: Any
    layer: Any
    step: Any
    values_out: Any
    sums_out: Any
    q_tiles: Any
    leaving: Any
    sums: Any
    keys: Any
    values: Any
    key_scales: Any
    wide: Any
    written: Any
    q_loaded: Any
    keys_loaded: Any
    values_loaded: Any
    keys_free: Any
    values_free: Any

    @property
    def work(self) -> Work:
        return Work(self.end, self.tile)

    def seen(self, piece: Piece, window: int | None) -> Keys:
        """What the queries of a piece see of the cache."""
        seen = line.keys_of(self.position[piece.tile], self.queries[piece.tile], window)
        if self.step is None:
            return seen
        return seen._replace(end=seen.end - 1 - (piece.tile - self.step.first[piece.tile]))


def _kernel(*arguments: Any, shape: DecodeShape, num_pages: int, interpreted: bool) -> None:
    refs = _Refs(*arguments)
    group, first = lax.axis_index("group"), lax.axis_index("block") * shape.workers
    each_piece = partial(line.walk, refs.work, kv_heads=shape.kv_heads, workers=shape.all_workers)
    registers = mosaic.divide_registers(shape.workers, LOADING_REGISTERS)

    @pl.when(group < shape.workers)
    def _compute() -> None:
        mosaic.set_registers(registers, computing=True)
        number = lax.rem(group, jnp.int32(shape.workers))  # 0 of one, as the compiler sees: no registers for addresses
        worker = _Worker(refs, shape, number, first + group, num_pages, interpreted)
        each_piece(first + group, visit=worker.attend)
        plgpu.wait_smem_to_gmem(0)

    @pl.when(group == shape.workers)
    def _load() -> None:
        mosaic.set_registers(registers, computing=False)

        @plgpu.warp_map
        def _warp(warp: jax.Array) -> None:
            @pl.when(warp < shape.workers)
            def _loader() -> None:
                loader = _Loader(refs, shape, warp, _start_of(refs, num_pages))
                each_piece(first + warp, visit=loader.load)
                loader.drain(line.share_of(first + warp, shape.kv_heads * refs.end[refs.row.shape[0]], shape.all_workers))


class _Loader(NamedTuple):
    """A warp that loads for the worker of its number."""

    refs: _Refs
    shape: DecodeShape
    number: jax.Array
    layer_start: jax.Array

    def load(self, piece: Piece, done: jax.Array) -> None:
        """Fill the rings with the blocks of a piece; `done` blocks came before it."""
        refs, shape = self.refs, self.shape
        seen, row = refs.seen(piece, shape.options.window), refs.row[piece.tile]
        last_page = lax.div(seen.end - 1, jnp.int32(shape.page_size))
        pages = BLOCK_KEYS // shape.page_size

        @pl.loop(0, piece.blocks)
        def _block(block: jax.Array) -> None:
            first = (seen.block + piece.block + block) * pages
            # Past the row's end its last page, so that every slot awaits as many loads.
            ids = [refs.table[row, jnp.minimum(first + i, last_page)] for i in range(pages)]
            turn = done + block
            slot = self._free_slot(turn, shape.key_slots, refs.keys_free)
            self._start(ids, piece.head, 0, refs.keys.at[slot], refs.keys_loaded.at[slot])
            if refs.scales is not None:
                self._start_scales(ids, piece.head, slot)
            slot = self._free_slot(turn, shape.value_slots, refs.values_free)
            self._start(ids, piece.head, 1, refs.values.at[slot], refs.values_loaded.at[slot])

    def drain(self, share: line.Share) -> None:
        """Await that all is read: a barrier may not be left while it has completed a phase that nobody awaited."""
        for slots, free in ((self.shape.key_slots, self.refs.keys_free), (self.shape.value_slots, self.refs.values_free)):
            for slot in range(slots):
                waited = free.at[self.number * slots + slot]
                pl.when(slot < share.end - share.begin)(partial(plgpu.barrier_wait, waited))

    def _free_slot(self, turn: jax.Array, slots: int, free: Any) -> jax.Array:
        slot = self.number * slots + lax.rem(turn, jnp.int32(slots))
        pl.when(turn >= slots)(lambda: plgpu.barrier_wait(free.at[slot]))
        return slot

    def _start(self, ids: list[jax.Array], head: jax.Array, half: int, into: Any, barrier: Any) -> None:
        size = self.shape.page_size
        for i, page in enumerate(ids):
            source = self.refs.pages.at[self._page(page, head, half)]
            plgpu.copy_gmem_to_smem(source, into.at[pl.ds(i * size, size)], barrier)

    def _start_scales(self, ids: list[jax.Array], head: jax.Array, slot: jax.Array) -> None:
        refs, size = self.refs, self.shape.page_size
        for half in range(2):
            for i, page in enumerate(ids):
                into = refs.key_scales.at[slot, half]
                quantized.load_scales(refs.scales, self._page(page, head, half), into, i * size, refs.keys_loaded.at[slot])

    def _page(self, page: jax.Array, head: jax.Array, half: int) -> jax.Array:
        return (self.layer_start + page * 2 + half) * self.shape.kv_heads + head


def _start_of(refs: _Refs, num_pages: int) -> jax.Array:
    """Where the layer begins, in halves of pages. Computed where it is used: few registers may be held in wait."""
    start: jax.Array = refs.layer[0] * (2 * num_pages)
    return start


# Sum of weighted values f32 [64, D], and the sums of their weights.
_State = tuple[jax.Array, Sums]


class _Block(NamedTuple):
    """A block of keys: its first key, the position of the tile's first query, the keys that any of its queries sees."""

    first_key: jax.Array
    position: jax.Array
    seen: Keys

    @property
    def seen_rows(self) -> tuple[jax.Array, jax.Array]:
        return self.seen.start - self.first_key, self.seen.end - self.first_key

    @property
    def at_an_end(self) -> jax.Array:
        """Whether some keys of the block are not seen."""
        return (self.first_key < self.seen.start) | (self.first_key + BLOCK_KEYS > self.seen.end)


class _Worker(NamedTuple):
    """A warpgroup that computes.

    Its warps meet where shared memory is written that all of them multiply: where numbers are widened, and where the last values
    of a row are cleared. What one of them writes then, all have read before they last met.
    """

    refs: _Refs
    shape: DecodeShape
    number: jax.Array  # in its thread block
    worker: jax.Array
    num_pages: int
    interpreted: bool

    def attend(self, piece: Piece, done: jax.Array) -> None:
        """Attend to the blocks of a piece; `done` blocks came before it in the rings."""
        refs, shape, seen = self.refs, self.shape, self.refs.seen(piece, self.shape.options.window)
        q_tile = refs.q_tiles.at[self.number]
        self._load_queries(piece, q_tile)
        position = refs.position[piece.tile]
        attend = self._block if refs.wide is None else self._widened_block

        def step(block: jax.Array, state: _State) -> _State:
            first_key = (seen.block + piece.block + block) * BLOCK_KEYS
            return attend(q_tile, done + block, _Block(first_key, position, seen), state)

        state = lax.fori_loop(0, piece.blocks, step, (softmax.no_values(shape.dim), softmax.no_sums()))
        if shape.step is None:
            self._leave(piece, state)
            return
        last = piece.block + piece.blocks == seen.blocks
        written, count = refs.written.at[self.number], position + 1 - jnp.maximum(seen.start, seen.end)
        count = jnp.where(last, count, 0)
        state = step_keys.absorb(q_tile, refs.step, piece.tile, piece.head, count, written, shape.step, state)
        slot, own = refs.step.slots[piece.tile], _start_of(refs, self.num_pages) * shape.kv_heads + piece.head
        self._leave(piece, state, partial(step_keys.write, written, refs.pages, own, shape.kv_heads, slot, last))

    def _load_queries(self, piece: Piece, tile: Any) -> None:
        refs, shape = self.refs, self.shape
        own = lax.div(piece.head, jnp.int32(shape.shared))  # tile of the token
        if shape.step is not None:
            head = own * (shape.shared * shape.step.heads)
            step_keys.load_queries(tile, refs.step, piece.tile, head, shape.rows, shape.step)
            return
        loaded = refs.q_loaded.at[self.number]
        plgpu.copy_gmem_to_smem(refs.q.at[piece.tile, own], tile.at[pl.ds(0, shape.rows)], loaded)
        plgpu.barrier_wait(loaded)

    def _block(self, q_tile: Any, turn: jax.Array, block: _Block, state: _State) -> _State:
        refs, (key_slot, value_slot) = self.refs, self._slots(turn)
        values, loaded = refs.values.at[value_slot], refs.values_loaded.at[value_slot]
        plgpu.barrier_wait(refs.keys_loaded.at[key_slot])
        scores = products.product(q_tile, refs.keys.at[key_slot].transpose((1, 0)))
        plgpu.barrier_arrive(refs.keys_free.at[key_slot])
        logits = self._mask(softmax.logits(scores, self.shape.options, None), block)
        sums, fade, weights = softmax.absorb(state[1], logits, None)
        weights = weights.astype(values.dtype)
        plgpu.barrier_wait(loaded)

        @pl.when(block.at_an_end)
        def _clear() -> None:
            softmax.clear_unused(values, *block.seen_rows)
            plgpu.commit_smem()

        total = self._add(state[0], fade, weights, values)
        plgpu.barrier_arrive(refs.values_free.at[value_slot])
        return total, sums

    def _widened_block(self, q_tile: Any, turn: jax.Array, block: _Block, state: _State) -> _State:
        refs, (key_slot, value_slot) = self.refs, self._slots(turn)
        stored, scales = refs.values.at[value_slot], refs.key_scales.at[key_slot]
        keys, values = (wide.at[self.number] for wide in refs.wide)
        plgpu.barrier_wait(refs.keys_loaded.at[key_slot])
        quantized.widen(refs.keys.at[key_slot], keys, None)
        plgpu.commit_smem()
        scores = products.product(q_tile, keys.transpose((1, 0)))
        seen = quantized.Seen(*block.seen_rows)
        logits = self._mask(softmax.logits(scores, self.shape.options, quantized.read_scales(scales.at[0], None)), block)
        sums, fade, weights = softmax.absorb(state[1], logits, quantized.read_scales(scales.at[1], seen))
        weights = weights.astype(values.dtype)
        plgpu.barrier_wait(refs.values_loaded.at[value_slot])
        quantized.widen_values(stored, values, seen, block.at_an_end)
        plgpu.commit_smem()
        # What the warps have loaded themselves TMA may overwrite after that.
        plgpu.barrier_arrive(refs.keys_free.at[key_slot])
        plgpu.barrier_arrive(refs.values_free.at[value_slot])
        return self._add(state[0], fade, weights, values), sums

    def _add(self, total: jax.Array, fade: jax.Array, weights: jax.Array, values: Any) -> jax.Array:
        return products.add_product(total * softmax.over_columns(fade, total), weights, values, interpreted=self.interpreted)

    def _slots(self, turn: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Where the keys of a turn are, and its values."""
        keys, values = (
            self.number * slots + lax.rem(turn, jnp.int32(slots)) for slots in (self.shape.key_slots, self.shape.value_slots)
        )
        return keys, values

    def _mask(self, logits: jax.Array, block: _Block) -> jax.Array:
        shape, window = self.shape, self.shape.options.window
        key = softmax.iota((WGMMA_ROWS, BLOCK_KEYS), 1)
        if shape.queries == 1:
            start, end = block.seen_rows
            visible = key < end if window is None else (key >= start) & (key < end)
            return jnp.where(visible, logits, softmax.MASKED)
        row = plgpu.broadcasted_iota(jnp.int32, (WGMMA_ROWS,), 0, layout=plgpu.Layout.WGMMA.reduce(1))
        position = block.position - block.first_key + lax.div(row, jnp.int32(shape.group))
        position = lax.broadcast_in_dim(position, key.shape, [0])
        visible = key <= position
        if window is not None:
            visible &= key > position - window
        return jnp.where(visible, logits, softmax.MASKED)

    def _leave(self, piece: Piece, state: _State, write: Callable[[], None] | None = None) -> None:
        """Store a piece's result, of the groups of 8 rows that have queries; and call `write` where all is committed."""
        refs, shape, size = self.refs, self.shape, mosaic.ROW_TILE
        used = refs.queries[piece.tile] * shape.group
        slot = line.slot_of(piece.tile * shape.kv_heads + piece.head, self.worker)
        total, sums_of_rows = state
        leaving, sums = refs.leaving.at[self.number], refs.sums.at[self.number]

        def groups(store: Any) -> None:
            for group in range(shape.rows // size):
                pl.when(group * size < used)(partial(store, group))

        def store_sums(group: int) -> None:
            for which in range(2):
                rows = sums.at[which, pl.ds(group * size, size)]
                plgpu.copy_smem_to_gmem(rows, refs.sums_out.at[group, which, slot])

        def store_values(columns: Any, group: int) -> None:
            rows = leaving.at[pl.ds(group * size, size), pl.ds(0, columns.size)]
            plgpu.copy_smem_to_gmem(rows, refs.values_out.at[group, slot, :, columns])

        plgpu.wait_smem_to_gmem(0)  # for the piece before
        for which, number in enumerate(sums_of_rows):
            sums[which] = number
        width = softmax.leaving_columns(shape.dim)
        for first in range(0, shape.dim, width):
            columns = pl.ds(first, min(width, shape.dim - first))
            if first > 0:
                plgpu.wait_smem_to_gmem(0)
            leaving[:, pl.ds(0, columns.size)] = total[:, first : first + columns.size]
            plgpu.commit_smem()
            if first == 0:
                groups(store_sums)
                if write is not None:
                    write()
            groups(partial(store_values, columns))
