"""Attention over latents in Mosaic GPU: 64 pairs of a token and a head over the pages of a row, for decodes and prompts alike.

All heads of a token attend to the same latents, so a thread block loads each once for 64 rows, and a block of them in shared
memory is keys and values at once. The registers of a warpgroup hold half of 64 rows of 512 numbers, as in FlashMLA (DeepSeek-AI
2025), and nothing beside. So two warpgroups share the columns of the values, another one makes scores and weights for both, a
block of keys ahead of them, and a fourth loads pages by TMA, whose source address is looked up in the page table.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.ragged_paged_attention import mosaic_gpu_products as products
from pallas_kernels.ragged_paged_attention.mosaic_gpu_latent_plan import BLOCK_KEYS, TILE_ROWS, LatentShape, Units

LOG2_E = math.log2(math.e)
# Scores are masked with this and not with -inf, which cannot be subtracted from itself.
MASKED = -1e30
TINY = float(np.finfo(np.float32).tiny)
VALUE_GROUPS = 2  # warpgroups 0 and 1, which share the columns of the values
SCORES, LOADER = 2, 3  # the other warpgroups
# Registers of a thread: four warpgroups share the 65536 of a multiprocessor.
VALUE_REGISTERS, SCORE_REGISTERS, LOADING_REGISTERS = 184, 112, 32
ROWS = plgpu.Layout.WGMMA.reduce(1)  # a number for each row of a tile
PART_COLUMNS = 64  # that are cleared, or merged, at once: few registers at a time
ADDED_COLUMNS = 128  # of values, at once: ptxas has no wider wgmma for a block of four warpgroups


class Attended(NamedTuple):
    """What the kernel leaves.

    Attributes:
        out: [T * heads, value_dim] in q's dtype; anything for tokens of groups that are cut.
        partials: f32 [partials, tiles, 64, value_dim], of the parts of those.
        logarithms: f32 [partials, tiles, 64], base 2 logarithms of their sums of weights; about -1e30 for no keys.
    """

    out: jax.Array
    partials: jax.Array
    logarithms: jax.Array


def paged_latent(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    units: Units,
    layer: jax.Array,
    *,
    shape: LatentShape,
    interpret: Any,
) -> Attended:
    """Attend from all tokens to the latents of their rows, up to and including their own.

    Args:
        q: [T * heads, D] bf16 or f16.
        kv_pages: [L, P, 1, 1, S, D] in q's dtype.
        page_table: int32 [R, M].
        units: what the thread blocks do.
        layer: int32 [1]; an array, so that all layers of a model share one kernel.
        shape: the static arguments.
        interpret: `mosaic.interpreter()` to run on CPUs, False to compile.
    """
    width = swizzle(shape, q.dtype)
    tile = partial(mosaic.tiled, dtype=q.dtype, swizzle=width)
    pages = BLOCK_KEYS // shape.page_size
    stats = (shape.partials, shape.tiles, TILE_ROWS)
    run = plgpu.kernel(
        partial(_kernel, shape=shape, num_pages=kv_pages.shape[1], interpreted=bool(interpret)),
        out_type=(
            jax.ShapeDtypeStruct((q.shape[0], shape.value_dim), q.dtype),
            jax.ShapeDtypeStruct((*stats, shape.value_dim), jnp.float32),
            jax.ShapeDtypeStruct(stats, jnp.float32),
        ),
        # Tiles of a group are neighbours in time: they find each other's pages in the L2 cache.
        grid=(shape.units, shape.tiles),
        grid_names=("unit", "tile"),
        num_threads=LOADER + 1,
        thread_name="group",
        scratch_types=[
            plgpu.RefUnion(tile((TILE_ROWS, shape.dim)), tile((VALUE_GROUPS, TILE_ROWS, shape.value_dim // VALUE_GROUPS))),
            tile((shape.slots, BLOCK_KEYS, shape.dim)),
            tile((TILE_ROWS, BLOCK_KEYS)),
            plgpu.SMEM((TILE_ROWS,), jnp.float32),
            plgpu.Barrier(),
            plgpu.Barrier(num_arrivals=pages, num_barriers=shape.slots),
            plgpu.Barrier(num_arrivals=pages),
            plgpu.Barrier(num_arrivals=VALUE_GROUPS, num_barriers=shape.slots),
            plgpu.Barrier(),
            plgpu.Barrier(num_arrivals=VALUE_GROUPS),
        ],
        # Rows are reduced in registers: the shared memory kept for other reductions is what two blocks of keys lack.
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
        kernel_name="paged_latent",
        interpret=interpret,
    )
    pool = kv_pages.reshape(-1, shape.page_size, shape.dim)
    return Attended(*run(q, pool, page_table, units, layer))


def swizzle(shape: LatentShape, dtype: Any) -> int:
    """Return the bytes that both a latent and half of a value divide into."""
    return min(mosaic.swizzle_bytes(shape.dim, dtype), mosaic.swizzle_bytes(shape.value_dim // 2, dtype))


def columns_of(first: int, count: int, most: int = PART_COLUMNS) -> list[Any]:
    """Return columns [first, first + count) in parts of at most `most`."""
    step = min(count, most)
    return [pl.ds(start, min(step, first + count - start)) for start in range(first, first + count, step)]


def store_tokens(tile: Any, out: Any, columns: Any, token: jax.Array, span: tuple[Any, Any], shape: LatentShape) -> None:
    """Copy columns of a tile in shared memory, whose tokens begin at `token`, to those of out [T * heads, .] within `span`."""
    rows = min(shape.heads, TILE_ROWS)
    head = lax.axis_index("tile") * TILE_ROWS
    plgpu.commit_smem()
    for i in range(shape.group):

        @pl.when((token + i >= span[0]) & (token + i < span[1]))
        def _store(i: int = i) -> None:
            target = out.at[pl.ds((token + i) * shape.heads + head, rows), columns]
            plgpu.copy_smem_to_gmem(tile.at[pl.ds(i * rows, rows)], target)

    plgpu.wait_smem_to_gmem(0)


class _Refs(NamedTuple):
    """Memory of the kernel, in the order of its arguments: inputs, outputs, scratch."""

    q: Any
    pages: Any
    table: Any
    units: Units
    layer: Any
    out: Any
    partials: Any
    logarithms: Any
    q_or_result: Any
    keys: Any
    weights: Any
    factors: Any
    q_loaded: Any
    keys_loaded: Any
    end_loaded: Any
    keys_free: Any
    weights_ready: Any
    weights_free: Any

    @property
    def q_tile(self) -> Any:
        """Queries, until the last scores are made."""
        return self.q_or_result[0]

    @property
    def result(self) -> Any:
        """[warpgroup, 64, columns], from then on."""
        return self.q_or_result[1]

    def mine(self, *names: str) -> list[jax.Array]:
        """Read fields of this thread block's unit, int32 scalars; where they are needed, because registers are few."""
        return [getattr(self.units, name)[lax.axis_index("unit")] for name in names]


def _kernel(*arguments: Any, shape: LatentShape, num_pages: int, interpreted: bool) -> None:
    refs, group = _Refs(*arguments), lax.axis_index("group")
    first, last = refs.mine("first", "last")
    live = last > first

    for number in range(VALUE_GROUPS):

        @pl.when(live & (group == number))
        def _values(number: int = number) -> None:
            plgpu.set_max_registers(VALUE_REGISTERS, action="increase")
            _add_up(refs, number, shape, interpreted)

    @pl.when(live & (group == SCORES))
    def _scores() -> None:
        plgpu.set_max_registers(SCORE_REGISTERS, action="decrease")
        _score(refs, shape)

    @pl.when(live & (group == LOADER))
    def _load() -> None:
        plgpu.set_max_registers(LOADING_REGISTERS, action="decrease")
        _load_pages(refs, shape, num_pages)


def _load_pages(refs: _Refs, shape: LatentShape, num_pages: int) -> None:
    """Fill the ring of blocks of keys."""
    pages = BLOCK_KEYS // shape.page_size
    row, length, first_block, blocks = refs.mine("row", "length", "block", "blocks")
    last_page = lax.div(length - 1, jnp.int32(shape.page_size))
    layer_start = refs.layer[0] * num_pages

    def start(block: jax.Array, into: Any, barrier: Any) -> None:
        # Past the row's end its last page, so that every slot awaits as many loads.
        for i in range(pages):
            page = refs.table[row, jnp.minimum(block * pages + i, last_page)]
            source = refs.pages.at[layer_start + page]
            plgpu.copy_gmem_to_smem(source, into.at[pl.ds(i * shape.page_size, shape.page_size)], barrier)

    @pl.loop(0, blocks)
    def _block(number: jax.Array) -> None:
        slot, block = lax.rem(number, jnp.int32(shape.slots)), first_block + number
        keys, loaded = refs.keys.at[slot], refs.keys_loaded.at[slot]
        pl.when(number >= shape.slots)(lambda: plgpu.barrier_wait(refs.keys_free.at[slot]))
        at_end = (block + 1) * BLOCK_KEYS > length
        pl.when(jnp.logical_not(at_end))(lambda: start(block, keys, loaded))

        @pl.when(at_end)
        def _clear() -> None:
            start(block, keys, refs.end_loaded)
            plgpu.barrier_wait(refs.end_loaded)
            _clear_after(keys, length - block * BLOCK_KEYS)
            for _ in range(pages):
                plgpu.barrier_arrive(loaded)

    # A barrier may not be left while it has completed a phase that nobody awaited.
    for slot in range(shape.slots):
        pl.when(slot < blocks)(partial(plgpu.barrier_wait, refs.keys_free.at[slot]))


def _clear_after(keys: Any, count: jax.Array) -> None:
    """Put zeros in place of keys at and after `count`: they may be NaN, which a weight of 0 does not cancel."""
    for part in columns_of(0, keys.shape[1]):
        columns = keys.at[:, part]
        loaded = plgpu.load(columns, layout=plgpu.Layout.WGMMA)
        columns[...] = jnp.where(_iota(loaded.shape, 0) < count, loaded, jnp.zeros_like(loaded))
    plgpu.commit_smem()


def _score(refs: _Refs, shape: LatentShape) -> None:
    """Make the weights of each block of keys, and the factor that what was added up before is multiplied with."""
    token, first, shift, first_block, blocks = refs.mine("token", "first", "shift", "block", "blocks")
    row = token * shape.heads + lax.axis_index("tile") * TILE_ROWS
    plgpu.copy_gmem_to_smem(refs.q.at[pl.ds(row, TILE_ROWS)], refs.q_tile, refs.q_loaded)
    plgpu.barrier_wait(refs.q_loaded)
    query = lax.div(_iota((TILE_ROWS, BLOCK_KEYS), 0), jnp.int32(shape.heads))
    position = query + (token + shift)

    def step(number: jax.Array, state: Any, *, masked: bool) -> Any:
        largest, total = state
        slot = lax.rem(number, jnp.int32(shape.slots))
        plgpu.barrier_wait(refs.keys_loaded.at[slot])
        logits = products.product(refs.q_tile, refs.keys.at[slot].transpose((1, 0))) * (shape.scale * LOG2_E)
        if masked:
            key = _iota(logits.shape, 1) + (first_block + number) * BLOCK_KEYS
            logits = jnp.where(key <= position, logits, MASKED)
        top = jnp.maximum(largest, logits.max(axis=1))
        fade = jnp.exp2(largest - top)
        weight = jnp.exp2(logits - lax.broadcast_in_dim(top, logits.shape, [0]))
        pl.when(number > 0)(lambda: plgpu.barrier_wait(refs.weights_free))
        refs.weights[...] = weight.astype(refs.weights.dtype)
        _announce(refs, fade)
        return top, total * fade + weight.sum(axis=1)

    # The first blocks are seen by all tokens that count.
    seen = lax.div(first + shift + 1, jnp.int32(BLOCK_KEYS)) - first_block
    whole = jnp.clip(seen, 0, blocks)
    state = tuple(plgpu.layout_cast(jnp.full((TILE_ROWS,), start, jnp.float32), ROWS) for start in (MASKED, 0.0))
    state = lax.fori_loop(0, whole, partial(step, masked=False), state)
    largest, total = lax.fori_loop(whole, blocks, partial(step, masked=True), state)
    total = jnp.maximum(total, TINY)
    pl.when(blocks > 0)(lambda: plgpu.barrier_wait(refs.weights_free))
    _announce(refs, 1.0 / total)
    [result_slot] = refs.mine("slot")

    @pl.when(result_slot >= 0)
    def _leave_logarithm() -> None:
        refs.logarithms[result_slot, lax.axis_index("tile")] = largest + jnp.log2(total)


def _announce(refs: _Refs, factor: jax.Array) -> None:
    """Pass the weights in shared memory on, and the factor of each row."""
    refs.factors[...] = factor
    plgpu.commit_smem()
    plgpu.barrier_arrive(refs.weights_ready)


def _add_up(refs: _Refs, group: int, shape: LatentShape, interpreted: bool) -> None:
    """Add up a warpgroup's columns of the values, and leave them."""
    count = shape.value_dim // VALUE_GROUPS
    columns = columns_of(group * count, count, ADDED_COLUMNS)
    [blocks] = refs.mine("blocks")

    def await_factor() -> Any:
        plgpu.barrier_wait(refs.weights_ready)
        factor = plgpu.load(refs.factors, layout=ROWS, optimized=False)
        return lambda value: value * lax.broadcast_in_dim(factor, value.shape, [0])

    def step(number: jax.Array, values: Any) -> Any:
        slot = lax.rem(number, jnp.int32(shape.slots))
        plgpu.barrier_wait(refs.keys_loaded.at[slot])
        fade = await_factor()
        keys = refs.keys.at[slot]
        values = tuple(
            products.add_product(fade(old), refs.weights, keys.at[:, part], interpreted=interpreted)
            for old, part in zip(values, columns, strict=True)
        )
        plgpu.barrier_arrive(refs.weights_free)
        plgpu.barrier_arrive(refs.keys_free.at[slot])
        return values

    nothing = tuple(plgpu.layout_cast(jnp.zeros((TILE_ROWS, part.size), jnp.float32), plgpu.Layout.WGMMA) for part in columns)
    values = lax.fori_loop(0, blocks, step, nothing)
    normal = await_factor()
    token, first, last, result_slot = refs.mine("token", "first", "last", "slot")

    @pl.when(result_slot < 0)
    def _leave_whole() -> None:
        tile = refs.result.at[group]  # no more scores are made: the queries' memory is free
        for part, value in zip(columns_of(0, count, ADDED_COLUMNS), values, strict=True):
            tile[:, part] = normal(value).astype(tile.dtype)
        store_tokens(tile, refs.out, pl.ds(group * count, count), token, (first, last), shape)

    @pl.when(result_slot >= 0)
    def _leave_part() -> None:
        for part, value in zip(columns, values, strict=True):
            refs.partials[result_slot, lax.axis_index("tile"), :, part] = normal(value)


def _iota(shape: tuple[int, ...], axis: int) -> jax.Array:
    index: jax.Array = plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=plgpu.Layout.WGMMA)
    return index
