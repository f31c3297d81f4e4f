"""Prefill in Mosaic GPU: blocks of queries of one row over the pages of their row.

A thread block takes an item, some queries of a row, and a KV head: pairs of a query and a query head of that KV head are
the rows of its wgmma tiles, 64 for each warpgroup that computes. One more warpgroup loads pages by TMA, whose source address
is looked up in the page table, into rings of keys and of values that the others share. Blocks of keys that every query of
the item attends to are not masked.
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
from pallas_kernels.ragged_paged_attention import mosaic_gpu_softmax as tile
from pallas_kernels.ragged_paged_attention.mosaic_gpu_softmax import BLOCK_KEYS, WGMMA_ROWS, Options, Softmax

# Registers of a thread: three warpgroups share the 65536 of a multiprocessor, and loading needs few.
LOADING_REGISTERS, COMPUTING_REGISTERS = 40, 232


@dataclass(frozen=True)
class PrefillShape:
    """Static arguments of the kernel.

    Attributes:
        page_size: S; divides BLOCK_KEYS.
        kv_heads: K.
        group: rows of a query, G padded to a power of two.
        dim: D.
        groups: warpgroups that compute.
        slots: blocks of keys, and as many of values, in shared memory.
        options: scale, window and soft cap.
    """

    page_size: int
    kv_heads: int
    group: int
    dim: int
    groups: int
    slots: int
    options: Options

    @property
    def rows(self) -> int:
        """Rows of an item's tiles."""
        return self.groups * WGMMA_ROWS

    @property
    def queries(self) -> int:
        """Queries of an item."""
        return self.rows // self.group


class Items(NamedTuple):
    """The blocks of queries, int32 [I] each.

    Attributes:
        row: of the batch.
        position: of the first query in its row.
        queries: how many; 0 for an item that is skipped.
        length: keys of the row; after them memory may hold anything.
    """

    row: jax.Array
    position: jax.Array
    queries: jax.Array
    length: jax.Array


def paged_prefill(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    items: Items,
    layer: jax.Array,
    *,
    shape: PrefillShape,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """Attend from the queries of each item to the keys of its row, up to and including themselves.

    Args:
        q: [I, K, groups, 64, D] bf16 or f16; row r of an item is head r % G' of query r // G'. Rows without a query may hold
            anything.
        kv_pages: [L, P, 2, K, S, D] in q's dtype.
        page_table: int32 [R, M].
        items: what the rows of q are.
        layer: int32 [1]; an array, so that all layers of a model share one kernel.
        shape: the static arguments.
        interpret: `mosaic.interpreter()` to run on CPUs, False to compile.

    Returns:
        Like q, and the base 2 logarithms of the sums of weights, f32 [I, K, groups, 64]. Anything for rows without a query.
    """
    dtype, dim = q.dtype, shape.dim
    swizzle = mosaic.swizzle_bytes(dim, dtype)
    pages = kv_pages.reshape(-1, shape.page_size, dim)  # TMA addresses 5 dimensions, tiles included
    loads = BLOCK_KEYS // shape.page_size
    run = plgpu.kernel(
        partial(_kernel, shape=shape, num_pages=kv_pages.shape[1]),
        out_type=(jax.ShapeDtypeStruct(q.shape, dtype), jax.ShapeDtypeStruct(q.shape[:-1], jnp.float32)),
        grid=(q.shape[0], shape.kv_heads),
        grid_names=("item", "head"),
        num_threads=shape.groups + 1,
        thread_name="group",
        scratch_types=[
            mosaic.tiled((shape.groups, WGMMA_ROWS, dim), dtype),
            mosaic.tiled((shape.groups, WGMMA_ROWS, BLOCK_KEYS), dtype, swizzle),
            plgpu.SMEM((shape.groups, WGMMA_ROWS), jnp.float32),
            mosaic.tiled((shape.slots, BLOCK_KEYS, dim), dtype),
            mosaic.tiled((shape.slots, BLOCK_KEYS, dim), dtype),
            plgpu.Barrier(num_barriers=shape.groups),
            plgpu.Barrier(num_arrivals=loads, num_barriers=shape.slots),
            plgpu.Barrier(num_arrivals=loads, num_barriers=shape.slots),
            plgpu.Barrier(num_arrivals=loads),
            plgpu.Barrier(num_arrivals=shape.groups, num_barriers=shape.slots),
            plgpu.Barrier(num_arrivals=shape.groups, num_barriers=shape.slots),
        ],
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name="paged_prefill",
        interpret=interpret,
    )
    attended, logarithm = run(q, pages, page_table, *items, layer)
    return attended, logarithm


class _Refs(NamedTuple):
    """Memory of the kernel, in the order of its arguments: inputs, outputs, scratch."""

    q: Any
    pages: Any
    table: Any
    row: Any
    position: Any
    queries: Any
    length: Any
    layer: Any
    out: Any
    logarithm_out: Any
    q_tiles: Any
    weights: Any
    logarithms: Any
    keys: Any
    values: Any
    q_loaded: Any
    keys_loaded: Any
    values_loaded: Any
    end_loaded: Any
    keys_free: Any
    values_free: Any


class _Item(NamedTuple):
    """What a thread block works on, int32 scalars: keys from `start` on, in blocks [block, block + blocks).

    The first `whole` blocks need no mask.
    """

    item: jax.Array
    head: jax.Array
    position: jax.Array
    start: jax.Array
    length: jax.Array
    block: jax.Array
    blocks: jax.Array
    whole: jax.Array


def _item_of(refs: _Refs, shape: PrefillShape) -> _Item:
    # The last blocks of a row have the most keys: they go first.
    item = lax.axis_size("item") - 1 - lax.axis_index("item")
    position, queries, window = refs.position[item], refs.queries[item], shape.options.window
    start = jnp.int32(0) if window is None else jnp.maximum(position - (window - 1), 0)
    block = lax.div(start, jnp.int32(BLOCK_KEYS))
    blocks = lax.div(position + queries + (BLOCK_KEYS - 1), jnp.int32(BLOCK_KEYS)) - block
    whole = lax.div(position + 1, jnp.int32(BLOCK_KEYS)) if window is None else jnp.int32(0)
    blocks = jnp.where(queries > 0, blocks, 0)
    return _Item(item, lax.axis_index("head"), position, start, refs.length[item], block, blocks, jnp.minimum(whole, blocks))


def _kernel(*arguments: Any, shape: PrefillShape, num_pages: int) -> None:
    refs = _Refs(*arguments)
    item, group = _item_of(refs, shape), lax.axis_index("group")

    @pl.when((item.blocks > 0) & (group < shape.groups))
    def _compute() -> None:
        plgpu.set_max_registers(COMPUTING_REGISTERS, action="increase")
        _attend(refs, item, group, shape)

    @pl.when((item.blocks > 0) & (group == shape.groups))
    def _load() -> None:
        plgpu.set_max_registers(LOADING_REGISTERS, action="decrease")
        _load_pages(refs, item, shape, num_pages)


def _load_pages(refs: _Refs, item: _Item, shape: PrefillShape, num_pages: int) -> None:
    row, layer_start = refs.row[item.item], refs.layer[0] * (2 * num_pages)
    size, pages = shape.page_size, BLOCK_KEYS // shape.page_size
    last_page = lax.div(item.length - 1, jnp.int32(size))

    def load(ids: list[jax.Array], half: int, slots: Any, barrier: Any, slot: jax.Array) -> None:
        for i, page in enumerate(ids):
            source = (layer_start + page * 2 + half) * shape.kv_heads + item.head
            plgpu.copy_gmem_to_smem(refs.pages.at[source], slots.at[slot, pl.ds(i * size, size)], barrier)

    @pl.loop(0, item.blocks)
    def _block(block: jax.Array) -> None:
        slot = lax.rem(block, jnp.int32(shape.slots))
        first_key = (item.block + block) * BLOCK_KEYS
        # Past the row's end its last page is loaded again, so that every slot awaits as many loads.
        first_page = (item.block + block) * pages
        ids = [refs.table[row, jnp.minimum(first_page + i, last_page)] for i in range(pages)]
        again = block >= shape.slots
        pl.when(again)(lambda: plgpu.barrier_wait(refs.keys_free.at[slot]))
        load(ids, 0, refs.keys, refs.keys_loaded.at[slot], slot)
        pl.when(again)(lambda: plgpu.barrier_wait(refs.values_free.at[slot]))
        at_an_end = (first_key < item.start) | (first_key + BLOCK_KEYS > item.length)
        pl.when(jnp.logical_not(at_an_end))(lambda: load(ids, 1, refs.values, refs.values_loaded.at[slot], slot))

        @pl.when(at_an_end)
        def _clear() -> None:
            load(ids, 1, refs.values, refs.end_loaded, slot)
            plgpu.barrier_wait(refs.end_loaded)
            tile.clear_unused(refs.values.at[slot], first_key, item.start, item.length)
            for _ in range(pages):
                plgpu.barrier_arrive(refs.values_loaded.at[slot])

    # A barrier may not be left while it has completed a phase that nobody awaited.
    for slot in range(shape.slots):

        @pl.when(slot < item.blocks)
        def _drain(slot: int = slot) -> None:
            plgpu.barrier_wait(refs.keys_free.at[slot])
            plgpu.barrier_wait(refs.values_free.at[slot])


def _attend(refs: _Refs, item: _Item, group: jax.Array, shape: PrefillShape) -> None:
    q_tile, weights = refs.q_tiles.at[group], refs.weights.at[group]
    plgpu.copy_gmem_to_smem(refs.q.at[item.item, item.head, group], q_tile, refs.q_loaded.at[group])
    plgpu.barrier_wait(refs.q_loaded.at[group])
    # The position of each row's query, in the layout of a tile.
    query = lax.div(tile.iota((WGMMA_ROWS, BLOCK_KEYS), 0) + group * WGMMA_ROWS, jnp.int32(shape.group))
    position = query + item.position

    def step(block: jax.Array, state: Softmax, *, masked: bool) -> Softmax:
        slot = lax.rem(block, jnp.int32(shape.slots))
        plgpu.barrier_wait(refs.keys_loaded.at[slot])
        logits = tile.logits(q_tile, refs.keys.at[slot], shape.options)
        plgpu.barrier_arrive(refs.keys_free.at[slot])
        if masked:
            logits = _mask(logits, position, (item.block + block) * BLOCK_KEYS, shape.options.window)
        state, fade = tile.absorb(state, logits, weights)
        plgpu.barrier_wait(refs.values_loaded.at[slot])
        state = tile.add_values(state, fade, weights, refs.values.at[slot])
        plgpu.barrier_arrive(refs.values_free.at[slot])
        return state

    state = lax.fori_loop(0, item.whole, partial(step, masked=False), tile.before_any_key(shape.dim))
    state = lax.fori_loop(item.whole, item.blocks, partial(step, masked=True), state)
    for columns, values in zip(tile.parts_of(shape.dim), state.values, strict=True):
        total = lax.broadcast_in_dim(state.total, values.shape, [0])
        q_tile[:, columns] = (values / total).astype(q_tile.dtype)
    refs.logarithms[group] = state.largest + jnp.log2(state.total)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(q_tile, refs.out.at[item.item, item.head, group])
    plgpu.copy_smem_to_gmem(refs.logarithms.at[group], refs.logarithm_out.at[item.item, item.head, group])
    plgpu.wait_smem_to_gmem(0)


def _mask(logits: jax.Array, position: jax.Array, first_key: jax.Array, window: int | None) -> jax.Array:
    key = tile.iota((WGMMA_ROWS, BLOCK_KEYS), 1) + first_key
    seen = key <= position
    if window is not None:
        seen &= key > position - window
    return jnp.where(seen, logits, tile.MASKED)
