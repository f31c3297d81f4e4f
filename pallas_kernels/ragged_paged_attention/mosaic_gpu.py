"""ragged_paged_attention in Mosaic GPU, for Hopper: a decode kernel, one that merges what it leaves, a prefill kernel.

With no more tokens than rows every token is a tile of the decode kernel, and the prefill kernel is left out. Else the queries
of a row are a tile if they fit one, or some if all long rows together are few tiles: the decode kernel shares the keys of its
tiles between all multiprocessors, whatever the rows. Prompts that have a block for every multiprocessor go to the prefill
kernel, which masks less and reads the keys once for twice as many rows. Each kernel skips what is the other's.

XLA packs the queries into tiles and makes the work list, which depends on the rows alone: once for all layers of a window.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import mosaic
from pallas_kernels.ragged_paged_attention.mosaic_gpu_decode import DecodeShape, paged_decode
from pallas_kernels.ragged_paged_attention.mosaic_gpu_merge import MergeShape, merge
from pallas_kernels.ragged_paged_attention.mosaic_gpu_prefill import Items, PrefillShape, paged_prefill
from pallas_kernels.ragged_paged_attention.mosaic_gpu_softmax import LOG2_E, WGMMA_ROWS
from pallas_kernels.ragged_paged_attention.mosaic_gpu_step_keys import StepKeys, StepShape
from pallas_kernels.ragged_paged_attention.mosaic_gpu_tiles import HOPPER, INTERPRETED, decode_slots, merge_depth, prefill_slots
from pallas_kernels.ragged_paged_attention.mosaic_gpu_work import QueryTiles, plan
from pallas_kernels.ragged_paged_attention.options import AttentionOptions
from pallas_kernels.ragged_paged_attention.query_tiles import Rows, cut, token_rows

TMA_ALIGNMENT = 128  # bytes of shared memory


class KernelCall(NamedTuple):
    """What both kernels are given: the whole cache, int32 [1] layer, and sinks [H] as base 2 logits or None."""

    kv_pages: jax.Array
    kv_scales: jax.Array | None
    rows: Rows
    layer: jax.Array
    sinks: jax.Array | None

    def grouped(self, heads: jax.Array) -> jax.Array:
        """Divide axis 1 of [T, H, ...] into [T, K, G, ...]."""
        kv_heads = self.kv_pages.shape[3]
        return heads.reshape(heads.shape[0], kv_heads, heads.shape[1] // kv_heads, *heads.shape[2:])


def ragged_paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    query_start: jax.Array,
    kv_length: jax.Array,
    *,
    layer: int,
    options: AttentionOptions,
    kv_scales: jax.Array | None,
    sinks: jax.Array | None,
    interpret: bool = False,
) -> jax.Array:
    """See api.py. With `interpret` the kernels are interpreted, on CPUs."""
    call = _call(kv_pages, kv_scales, Rows(page_table, query_start, kv_length), layer, sinks)
    attended: jax.Array = _attend(q, call, options=options, interpret=interpret)
    return attended


def attend_unsplit(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    query_start: jax.Array,
    kv_length: jax.Array,
    *,
    layer: int,
    options: AttentionOptions,
    kv_scales: jax.Array | None,
    sinks: jax.Array | None,
    interpret: bool = False,
) -> jax.Array:
    """See api.py. The prefill kernel alone: the keys of a query are read by one thread block in order, from the row's first
    block of keys on, so that a result does not depend on the other queries.
    """
    call = _call(kv_pages, kv_scales, Rows(page_table, query_start, kv_length), layer, sinks)
    attended: jax.Array = _attend_unsplit(q, call, options=options, interpret=interpret)
    return attended


@partial(jax.jit, static_argnames=("options", "interpret"))
def _attend_unsplit(q: jax.Array, call: KernelCall, *, options: AttentionOptions, interpret: bool) -> jax.Array:
    token = jnp.arange(q.shape[0], dtype=jnp.int32)
    row, real = token_rows(call.rows, token)
    attended = _prefill(call, q, token, row, call.rows.counts, options, interpret, least=1)
    return jnp.where(real[:, None, None], attended, jnp.zeros((), q.dtype))


def _call(kv_pages: jax.Array, kv_scales: jax.Array | None, rows: Rows, layer: int, sinks: jax.Array | None) -> KernelCall:
    """The layer is an argument, so that all layers of a model share one trace and one kernel."""
    logits = None if sinks is None else sinks.astype(jnp.float32) * LOG2_E
    return KernelCall(kv_pages, kv_scales, rows, jnp.full(1, layer, jnp.int32), logits)


@partial(jax.jit, static_argnames=("options", "interpret"))
def _attend(q: jax.Array, call: KernelCall, *, options: AttentionOptions, interpret: bool) -> jax.Array:
    rows, tokens = call.rows, q.shape[0]
    group = call.grouped(q).shape[2]
    if tokens <= rows.kv_length.shape[0]:
        return _decode(call, q, _whole_rows(call.grouped(q)), tokens_as_tiles(rows, tokens), 1, options, interpret)
    token = jnp.arange(tokens, dtype=jnp.int32)
    row, real = token_rows(rows, token)
    padded = 1 << (group - 1).bit_length()
    few = WGMMA_ROWS // padded
    # Cut into tiles, long rows make half as many blocks of the prefill kernel, with all their keys each. If these are fewer
    # than multiprocessors, the decode kernel is faster, which shares the keys.
    sizes = INTERPRETED if interpret else HOPPER
    extra = min(2 * sizes.multiprocessors // call.kv_pages.shape[3], -(-tokens // few))
    long = rows.counts > few
    counts = jnp.where(long & (jnp.sum(jnp.where(long, -(-rows.counts // few), 0)) > extra), 0, rows.counts)
    most = rows.counts.shape[0] + extra
    blocks = cut(rows, counts, few, most)
    tiles = QueryTiles(blocks.row, blocks.position, blocks.queries, blocks.token)
    apart = _decode(call, q, _pack(call.grouped(q), blocks.token, few, padded), tiles, few, options, interpret)
    together = _prefill(call, q, token, row, rows.counts - counts, options, interpret, least=2)
    attended = jnp.where((counts > 0)[row][:, None, None], apart, together)
    return jnp.where(real[:, None, None], attended, jnp.zeros((), q.dtype))


def tokens_as_tiles(rows: Rows, tokens: int) -> QueryTiles:
    """Return a tile for each of `tokens`, in order."""
    token = jnp.arange(tokens, dtype=jnp.int32)
    row, real = token_rows(rows, token)
    position = token + rows.kv_length[row] - rows.query_start[row + 1]
    return QueryTiles(row, jnp.where(real, position, 0), real.astype(jnp.int32), jnp.where(real, token, ~token))


def sharing_heads(kv_heads: int, group: int, row_bytes: int) -> int:
    """Return how many KV heads share a tile of 8 rows, which is then whole; else 1, and a tile is padded to whole 8 rows.

    Each uses its own rows of the tile. Rows leave a tile by TMA, from whole 128 bytes on.
    """
    rows = mosaic.ROW_TILE
    whole = rows % group == 0 and kv_heads * group % rows == 0 and group * row_bytes % TMA_ALIGNMENT == 0
    return rows // group if whole else 1


def _whole_rows(grouped: jax.Array) -> jax.Array:
    """Divide the heads of [T, K, G, D] into tiles [T, K / shared, rows, D], of whole groups of 8 rows.

    Where KV heads share a tile nothing needs to be written again.
    """
    tokens, kv_heads, group, dim = grouped.shape
    shared = sharing_heads(kv_heads, group, dim * grouped.dtype.itemsize)
    tiles = grouped.reshape(tokens, -1, shared * group, dim)
    return jnp.pad(tiles, ((0, 0), (0, 0), (0, -shared * group % mosaic.ROW_TILE), (0, 0)))


def _pack(grouped: jax.Array, first: jax.Array, queries: int, padded: int) -> jax.Array:
    """Put `queries` tokens of [T, K, G, D] from each of `first` [I] on into tiles [I, K, queries * padded, D]."""
    tokens, kv_heads, group, dim = grouped.shape
    picked = jnp.clip(first[:, None] + jnp.arange(queries, dtype=jnp.int32)[None, :], 0, tokens - 1)  # [I, Q]
    packed = jnp.pad(grouped[picked], ((0, 0),) * 3 + ((0, padded - group), (0, 0)))  # [I, Q, K, G', D]
    return packed.transpose(0, 2, 1, 3, 4).reshape(first.shape[0], kv_heads, queries * padded, dim)


def _decode(
    call: KernelCall,
    q: jax.Array,
    packed: jax.Array,
    tiles: QueryTiles,
    queries: int,
    options: AttentionOptions,
    interpret: bool,
) -> jax.Array:
    """Attend from tiles of at most `queries` queries of q [T, H, D], packed; anything for tokens of no tile."""
    kv_heads = call.kv_pages.shape[3]
    cut = TileShape(q.shape[1] // kv_heads, packed.shape[2] // queries, queries, kv_heads // packed.shape[1])
    shape = decode_shape(call, cut, options, interpret)
    attended, _ = decode(call, packed, None, tiles, shape, cut.heads, q.shape[0], interpret)
    return attended.reshape(q.shape)


class TileShape(NamedTuple):
    """G, and `group`, `queries` and `shared` of a DecodeShape."""

    heads: int
    group: int
    queries: int
    shared: int


def decode_shape(
    call: KernelCall, tile: TileShape, options: AttentionOptions, interpret: bool, step: StepShape | None = None
) -> DecodeShape:
    """Return the decode kernel's sizes on a Hopper GPU, or interpreted."""
    dim, sizes = call.kv_pages.shape[5], INTERPRETED if interpret else HOPPER
    slots = decode_slots(dim, call.kv_pages.dtype.itemsize, sizes)
    return DecodeShape(
        page_size=call.kv_pages.shape[4],
        kv_heads=call.kv_pages.shape[3],
        group=tile.group,
        queries=tile.queries,
        shared=tile.shared,
        dim=dim,
        blocks=sizes.multiprocessors,
        workers=slots.workers,
        least_blocks=sizes.least_blocks,
        key_slots=slots.keys,
        value_slots=slots.values,
        options=options,
        step=step,
    )


def decode(
    call: KernelCall,
    packed: jax.Array | None,
    keys: StepKeys | None,
    tiles: QueryTiles,
    shape: DecodeShape,
    heads: int,
    tokens: int,
    interpret: bool,
) -> tuple[jax.Array, jax.Array]:
    """Attend from tiles, given packed or with the step's keys, and merge what they leave.

    Returns [T, K, G, D], anything for tokens of no tile, and the cache.
    """
    interpreter = mosaic.interpreter() if interpret else False
    work = plan(tiles, window=shape.options.window, kv_heads=shape.kv_heads, workers=shape.all_workers)
    table = call.rows.page_table
    partials, kv_pages = paged_decode(
        packed, call.kv_pages, call.kv_scales, table, tiles, work, call.layer, keys, shape=shape, interpret=interpreter
    )
    sinks = None if call.sinks is None else call.sinks.reshape(shape.kv_heads, heads)
    sizes = INTERPRETED if interpret else HOPPER
    depth = merge_depth(tiles.row.shape[0] * shape.kv_heads * partials.values.shape[0], shape.dim, sizes)
    merging = MergeShape(shape, heads, depth)
    dtype = call.kv_pages.dtype if packed is None else packed.dtype
    merged = merge(partials, tiles, work, sinks, shape=merging, tokens=tokens, dtype=dtype, interpret=interpreter)
    return merged, kv_pages


def _prefill(
    call: KernelCall,
    q: jax.Array,
    token: jax.Array,
    row: jax.Array,
    counts: jax.Array,
    options: AttentionOptions,
    interpret: bool,
    least: int,
) -> jax.Array:
    """Attend from q [T, H, D], `counts` [R] queries of each row; anything for other tokens.

    `row` [T] is each token's; rows that have queries have `least` or more.
    """
    rows, grouped = call.rows, call.grouped(q)
    tokens, kv_heads, group, dim = grouped.shape
    padded = 1 << (group - 1).bit_length()
    slots, stages = prefill_slots(dim, call.kv_pages.dtype.itemsize, HOPPER)
    shape = PrefillShape(call.kv_pages.shape[4], kv_heads, padded, dim, HOPPER.prefill_groups, slots, stages, options)
    # What follows a row's last query in its block is not looked at.
    taken = cut(rows, counts, shape.queries, tokens // shape.queries + min(rows.kv_length.shape[0], tokens // least))
    items = Items(taken.row, taken.position, taken.queries, rows.kv_length[taken.row])
    packed = _pack(grouped, taken.token, shape.queries, padded)
    blocks = packed.shape[0]
    packed = packed.reshape(blocks, kv_heads, shape.groups, WGMMA_ROWS, dim)
    interpreter = mosaic.interpreter() if interpret else False
    attended, logarithm = paged_prefill(
        packed, call.kv_pages, call.kv_scales, rows.page_table, items, call.layer, shape=shape, interpret=interpreter
    )
    query = token - rows.query_start[row]
    where = jnp.minimum(taken.first[row] + query // shape.queries, blocks - 1), query % shape.queries
    apart = (blocks, kv_heads, shape.queries, padded)
    out = attended.reshape(*apart, dim)[where[0], :, where[1], :group]
    if call.sinks is not None:
        sums = logarithm.reshape(apart)[where[0], :, where[1], :group]
        kept = 1.0 / (1.0 + jnp.exp2(call.sinks.reshape(1, kv_heads, group) - sums))
        out = (out.astype(jnp.float32) * kept[..., None]).astype(q.dtype)
    return out.reshape(q.shape)
