"""Prefill in Mosaic GPU: blocks of queries of one row over the pages of their row.

A thread block takes an item, some queries of a row, and a KV head: pairs of a query and a query head of that KV head are
the rows of its wgmma tiles, 64 for each warpgroup that computes. One more warpgroup loads pages by TMA, whose source address
is looked up in the page table, into rings of keys and of values that the others share. Blocks of keys that every query of
the item attends to are not masked.

The softmax of a block shares the time with the product of the weights and values of the block before (FlashAttention-3, Shah et
al. 2024): scores of the one and sum of the other are started together, and the sum is awaited when the new weights are there.

Of a cache in 8 bits the loading warpgroup also widens keys and values on their way into the rings.
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
from pallas_kernels.ragged_paged_attention import mosaic_gpu_products as products
from pallas_kernels.ragged_paged_attention import mosaic_gpu_quantized as quantized
from pallas_kernels.ragged_paged_attention import mosaic_gpu_softmax as tile
from pallas_kernels.ragged_paged_attention.mosaic_gpu_softmax import BLOCK_KEYS, WGMMA_ROWS, Sums
from pallas_kernels.ragged_paged_attention.options import AttentionOptions

# Registers of a thread that loads; one that widens, too, needs more.
LOADING_REGISTERS, WIDENING_REGISTERS = 40, 72
# Of a cache in 8 bits, up to which a softmax shares the time with a product: wider ones spilled.
BESIDE_WIDENING = 128


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
        stages: blocks of keys, and as many of values, as they are stored; of a cache in 8 bits only.
    """

    page_size: int
    kv_heads: int
    group: int
    dim: int
    groups: int
    slots: int
    stages: int
    options: AttentionOptions

    @property
    def rows(self) -> int:
        return self.groups * WGMMA_ROWS

    @property
    def queries(self) -> int:
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
    kv_scales: jax.Array | None,
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
        kv_pages: [L, P, 2, K, S, D] in q's dtype, float8 or int8.
        kv_scales: [L, P, 2, K, S] bf16 or f32 for float8 or int8, else None.
        page_table: int32 [R, M].
        items: what the rows of q are.
        layer: int32 [1]; an array, so that all layers of a model share one kernel.
        shape: the static arguments.
        interpret: `mosaic.interpreter()` to run on CPUs, False to compile.

    Returns:
        Like q, and the base 2 logarithms of the sums of weights, f32 [I, K, groups, 64]. Anything for rows without a query.
    """
    dtype = q.dtype
    pages = kv_pages.reshape(-1, shape.page_size, shape.dim)  # TMA addresses 5 dimensions, tiles included
    scales = None if kv_scales is None else kv_scales.reshape(-1, shape.page_size)
    run = plgpu.kernel(
        partial(_kernel, shape=shape, num_pages=kv_pages.shape[1], interpreted=bool(interpret)),
        out_type=(jax.ShapeDtypeStruct(q.shape, dtype), jax.ShapeDtypeStruct(q.shape[:-1], jnp.float32)),
        grid=(q.shape[0], shape.kv_heads),
        grid_names=("item", "head"),
        num_threads=shape.groups + 1,
        thread_name="group",
        scratch_types=_scratch(shape, dtype, kv_pages.dtype, None if scales is None else scales.dtype),
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name="paged_prefill",
        interpret=interpret,
    )
    attended, logarithm = run(q, pages, scales, page_table, *items, layer)
    return attended, logarithm


def _scratch(shape: PrefillShape, dtype: Any, kv_dtype: Any, scales_dtype: Any) -> list[Any]:
    """Describe the shared memory, in the order of `_Refs`."""
    dim, pages, widened = shape.dim, BLOCK_KEYS // shape.page_size, scales_dtype is not None
    value_dtype = quantized.VALUE_DTYPE if widened else dtype
    return [
        mosaic.tiled((shape.groups, WGMMA_ROWS, dim), dtype),
        plgpu.SMEM((shape.groups, WGMMA_ROWS), jnp.float32),
        mosaic.tiled((shape.slots, BLOCK_KEYS, dim), dtype),
        mosaic.tiled((shape.slots, BLOCK_KEYS, dim), value_dtype),
        plgpu.Barrier(num_barriers=shape.groups),
        plgpu.Barrier(num_arrivals=1 if widened else pages, num_barriers=shape.slots),
        plgpu.Barrier(num_arrivals=1 if widened else pages, num_barriers=shape.slots),
        None if widened else plgpu.Barrier(num_arrivals=pages),
        plgpu.Barrier(num_arrivals=shape.groups, num_barriers=shape.slots),
        plgpu.Barrier(num_arrivals=shape.groups, num_barriers=shape.slots),
        _stages(shape, kv_dtype, scales_dtype) if widened else None,
    ]


def _stages(shape: PrefillShape, kv_dtype: Any, scales_dtype: Any) -> _Stages:
    pages = BLOCK_KEYS // shape.page_size
    return _Stages(
        quantized.numbers(shape.stages, shape.dim, kv_dtype),
        quantized.numbers(shape.stages, shape.dim, kv_dtype),
        plgpu.SMEM((shape.slots + shape.stages, 2, BLOCK_KEYS), scales_dtype),
        plgpu.Barrier(num_arrivals=3 * pages, num_barriers=shape.stages),
        plgpu.Barrier(num_arrivals=pages, num_barriers=shape.stages),
    )


class _Stages(NamedTuple):
    """What a cache in 8 bits needs besides: numbers as they are stored, and scales.

    Scales stay where they are loaded to until the blocks in the slots and those in the stages are both done.
    """

    keys: Any
    values: Any
    scales: Any
    keys_loaded: Any
    values_loaded: Any


class _Refs(NamedTuple):
    """Memory of the kernel, in the order of its arguments: inputs, outputs, scratch."""

    q: Any
    pages: Any
    scales: Any
    table: Any
    row: Any
    position: Any
    queries: Any
    length: Any
    layer: Any
    out: Any
    logarithm_out: Any
    q_tiles: Any
    logarithms: Any
    keys: Any
    values: Any
    q_loaded: Any
    keys_loaded: Any
    values_loaded: Any
    end_loaded: Any
    keys_free: Any
    values_free: Any
    stages: Any


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

    def seen(self, block: jax.Array) -> quantized.Seen:
        """The keys of a block that are the row's and that some query of the item sees."""
        first_key = (self.block + block) * BLOCK_KEYS
        return quantized.Seen(self.start - first_key, self.length - first_key)


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


def _kernel(*arguments: Any, shape: PrefillShape, num_pages: int, interpreted: bool) -> None:
    refs = _Refs(*arguments)
    item, group = _item_of(refs, shape), lax.axis_index("group")
    registers = mosaic.divide_registers(shape.groups, LOADING_REGISTERS if refs.stages is None else WIDENING_REGISTERS)

    @pl.when((item.blocks > 0) & (group < shape.groups))
    def _compute() -> None:
        mosaic.set_registers(registers, computing=True)
        _attend(refs, item, group, shape, interpreted)

    @pl.when((item.blocks > 0) & (group == shape.groups))
    def _load() -> None:
        mosaic.set_registers(registers, computing=False)
        last_page = lax.div(item.length - 1, jnp.int32(shape.page_size))
        loads = _Loads(refs, item, shape, refs.row[item.item], refs.layer[0] * (2 * num_pages), last_page)
        (_load_pages if refs.stages is None else _widen_pages)(loads)

        # A barrier may not be left while it has completed a phase that nobody awaited.
        @pl.loop(0, jnp.minimum(item.blocks, shape.slots))
        def _drain(slot: jax.Array) -> None:
            plgpu.barrier_wait(refs.keys_free.at[slot])
            plgpu.barrier_wait(refs.values_free.at[slot])


class _Loads(NamedTuple):
    """How a thread block loads from its row's pages."""

    refs: _Refs
    item: _Item
    shape: PrefillShape
    row: jax.Array
    layer_start: jax.Array
    last_page: jax.Array

    def page_ids(self, block: jax.Array) -> list[jax.Array]:
        """Look up the pages of a block; past the row's end its last page, so that every slot awaits as many loads."""
        pages = BLOCK_KEYS // self.shape.page_size
        first = (self.item.block + block) * pages
        return [self.refs.table[self.row, jnp.minimum(first + i, self.last_page)] for i in range(pages)]

    def start(self, ids: list[jax.Array], half: int, into: Any, barrier: Any) -> None:
        """Load the keys (`half` 0) or values (1) of pages."""
        size = self.shape.page_size
        for i, page in enumerate(ids):
            plgpu.copy_gmem_to_smem(self.refs.pages.at[self._page(page, half)], into.at[pl.ds(i * size, size)], barrier)

    def start_scales(self, ids: list[jax.Array], into: Any, barrier: Any) -> None:
        """Load the scales of pages' keys and values into shared memory [2, BLOCK_KEYS]."""
        for half in range(2):
            for i, page in enumerate(ids):
                quantized.load_scales(self.refs.scales, self._page(page, half), into.at[half], i * self.shape.page_size, barrier)

    def at_an_end(self, block: jax.Array) -> jax.Array:
        """Whether a block has keys that are not the row's, or that no query of the item sees."""
        first_key = (self.item.block + block) * BLOCK_KEYS
        return (first_key < self.item.start) | (first_key + BLOCK_KEYS > self.item.length)

    def _page(self, page: jax.Array, half: int) -> jax.Array:
        return (self.layer_start + page * 2 + half) * self.shape.kv_heads + self.item.head


def _load_pages(loads: _Loads) -> None:
    """Fill the rings of keys and values from pages."""
    refs, item, shape = loads.refs, loads.item, loads.shape

    @pl.loop(0, item.blocks)
    def _block(block: jax.Array) -> None:
        slot = lax.rem(block, jnp.int32(shape.slots))
        ids = loads.page_ids(block)
        again = block >= shape.slots
        pl.when(again)(lambda: plgpu.barrier_wait(refs.keys_free.at[slot]))
        loads.start(ids, 0, refs.keys.at[slot], refs.keys_loaded.at[slot])
        pl.when(again)(lambda: plgpu.barrier_wait(refs.values_free.at[slot]))
        values, at_an_end = refs.values.at[slot], loads.at_an_end(block)
        pl.when(jnp.logical_not(at_an_end))(lambda: loads.start(ids, 1, values, refs.values_loaded.at[slot]))

        @pl.when(at_an_end)
        def _clear() -> None:
            loads.start(ids, 1, values, refs.end_loaded)
            plgpu.barrier_wait(refs.end_loaded)
            tile.clear_unused(values, *item.seen(block))
            plgpu.commit_smem()
            for _ in ids:
                plgpu.barrier_arrive(refs.values_loaded.at[slot])


def _widen_pages(loads: _Loads) -> None:
    """Fill the rings of keys and values from pages in 8 bits, which are loaded some blocks ahead."""
    refs, item, shape, stages = loads.refs, loads.item, loads.shape, loads.refs.stages

    def start(block: jax.Array) -> None:  # pages are looked up three times: to keep their numbers would spill registers
        stage = lax.rem(block, jnp.int32(shape.stages))
        loads.start_scales(loads.page_ids(block), stages.scales.at[_scale_slot(block, shape)], stages.keys_loaded.at[stage])
        loads.start(loads.page_ids(block), 0, stages.keys.at[stage], stages.keys_loaded.at[stage])
        loads.start(loads.page_ids(block), 1, stages.values.at[stage], stages.values_loaded.at[stage])

    def widen(block: jax.Array) -> None:
        slot, stage = lax.rem(block, jnp.int32(shape.slots)), lax.rem(block, jnp.int32(shape.stages))
        again = block >= shape.slots
        plgpu.barrier_wait(stages.keys_loaded.at[stage])
        pl.when(again)(lambda: plgpu.barrier_wait(refs.keys_free.at[slot]))
        quantized.widen(stages.keys.at[stage], refs.keys.at[slot], None)
        plgpu.commit_smem()
        plgpu.barrier_arrive(refs.keys_loaded.at[slot])
        plgpu.barrier_wait(stages.values_loaded.at[stage])
        pl.when(again)(lambda: plgpu.barrier_wait(refs.values_free.at[slot]))
        values = refs.values.at[slot]
        quantized.widen(stages.values.at[stage], values, None)
        plgpu.commit_smem()

        @pl.when(loads.at_an_end(block))
        def _clear() -> None:
            tile.clear_unused(values, *item.seen(block))
            plgpu.commit_smem()

        plgpu.barrier_arrive(refs.values_loaded.at[slot])

    @pl.loop(0, item.blocks + shape.stages)
    def _turn(turn: jax.Array) -> None:
        pl.when(turn >= shape.stages)(lambda: widen(turn - shape.stages))
        pl.when(turn < item.blocks)(lambda: start(turn))


def _scale_slot(block: jax.Array, shape: PrefillShape) -> jax.Array:
    return lax.rem(block, jnp.int32(shape.slots + shape.stages))


# Sum of weighted values f32 [64, D], the sums of their weights, and the weights [64, BLOCK_KEYS] that are still to be added.
_State = tuple[jax.Array, Sums, jax.Array]


def _slot(block: jax.Array, shape: PrefillShape) -> jax.Array:
    return lax.rem(block, jnp.int32(shape.slots))


def _attend(refs: _Refs, item: _Item, group: jax.Array, shape: PrefillShape, interpreted: bool) -> None:
    q_tile = refs.q_tiles.at[group]
    plgpu.copy_gmem_to_smem(refs.q.at[item.item, item.head, group], q_tile, refs.q_loaded.at[group])
    plgpu.barrier_wait(refs.q_loaded.at[group])
    # The position of each row's query, in the layout of a tile.
    query = lax.div(tile.iota((WGMMA_ROWS, BLOCK_KEYS), 0) + group * WGMMA_ROWS, jnp.int32(shape.group))
    position = query + item.position

    beside = refs.stages is None or shape.dim <= BESIDE_WIDENING

    def await_keys(block: jax.Array) -> None:
        plgpu.barrier_wait(refs.keys_loaded.at[_slot(block, shape)])

    def keys_of(block: jax.Array) -> Any:
        return refs.keys.at[_slot(block, shape)].transpose((1, 0))

    def values_of(block: jax.Array) -> Any:
        slot = _slot(block, shape)
        plgpu.barrier_wait(refs.values_loaded.at[slot])
        return refs.values.at[slot]

    def use(block: jax.Array, sums: Sums, scores: jax.Array, *, masked: bool) -> tuple[Sums, jax.Array, jax.Array]:
        """Take the scores of a block, whose keys nobody reads any more, into the sums; see `tile.absorb`."""
        plgpu.barrier_arrive(refs.keys_free.at[_slot(block, shape)])
        key_scales, value_scales = _scales(refs, item, block, shape, masked=masked)
        logits = tile.logits(scores, shape.options, key_scales)
        if masked:
            logits = _mask(logits, position, (item.block + block) * BLOCK_KEYS, shape.options.window)
        absorbed = tile.absorb(sums, logits, value_scales)
        if beside:  # ptxas moves exponentials behind the wait for the values, but not past the branch that follows
            absorbed = lax.optimization_barrier(absorbed)
        pl.when(block + 1 < item.blocks)(partial(await_keys, block + 1))
        return absorbed

    def step(block: jax.Array, state: _State, *, masked: bool) -> _State:
        total, sums, weights = state
        absorb = partial(use, block, sums, masked=masked)
        values, keys = values_of(block - 1), keys_of(block)
        if beside:
            total, used = products.add_beside_scores(total, weights, values, q_tile, keys, absorb, interpreted=interpreted)
        else:
            total = products.add_product(total, weights, values, interpreted=interpreted)
            used = absorb(products.product(q_tile, keys))
        plgpu.barrier_arrive(refs.values_free.at[_slot(block - 1, shape)])
        sums, fade, weights = used
        # wgmma may read weights of 16 bits until now. With others made earlier ptxas lets no two products run at once.
        total, weights = lax.optimization_barrier((total * tile.over_columns(fade, total), weights.astype(values.dtype)))
        return total, sums, weights

    first = jnp.int32(0)
    await_keys(first)
    sums, _, weights = use(first, tile.no_sums(), products.product(q_tile, keys_of(first)), masked=True)
    whole, start = jnp.maximum(item.whole, 1), (tile.no_values(shape.dim), sums, weights.astype(refs.values.dtype))
    state = lax.fori_loop(1, whole, partial(step, masked=False), start)
    total, sums, weights = lax.fori_loop(whole, item.blocks, partial(step, masked=True), state)
    last = item.blocks - 1
    total = products.add_product(total, weights, values_of(last), interpreted=interpreted)
    plgpu.barrier_arrive(refs.values_free.at[_slot(last, shape)])
    q_tile[...] = (total / tile.over_columns(sums.total, total)).astype(q_tile.dtype)
    refs.logarithms[group] = sums.largest + jnp.log2(sums.total)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(q_tile, refs.out.at[item.item, item.head, group])
    plgpu.copy_smem_to_gmem(refs.logarithms.at[group], refs.logarithm_out.at[item.item, item.head, group])
    plgpu.wait_smem_to_gmem(0)


def _scales(
    refs: _Refs, item: _Item, block: jax.Array, shape: PrefillShape, *, masked: bool
) -> tuple[jax.Array | None, jax.Array | None]:
    """Read the scales of a block's keys and values, if the cache has some."""
    if refs.stages is None:
        return None, None
    scales = refs.stages.scales.at[_scale_slot(block, shape)]
    return quantized.read_scales(scales.at[0], None), quantized.read_scales(scales.at[1], item.seen(block) if masked else None)


def _mask(logits: jax.Array, position: jax.Array, first_key: jax.Array, window: int | None) -> jax.Array:
    key = tile.iota((WGMMA_ROWS, BLOCK_KEYS), 1) + first_key
    seen = key <= position
    if window is not None:
        seen &= key > position - window
    return jnp.where(seen, logits, tile.MASKED)
