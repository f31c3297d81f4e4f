"""ragged_paged_attention in Mosaic GPU, for Hopper: a decode kernel and a prefill kernel, and XLA around them.

Queries that are alone in their rows go to the decode kernel, longer rows to the prefill kernel, each skipping what is the
other's. With no more tokens than rows every token is a decode of its own, and the prefill kernel is left out.
XLA packs the queries into tiles, merges the parts of rows and unpacks: about 1 % of the bytes of a decode of 64 rows of 4096
keys for 8 KV heads, more where rows are divided into more parts.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import mosaic
from pallas_kernels.ragged_paged_attention.mosaic_gpu_decode import DecodeShape, paged_decode, part_has_keys
from pallas_kernels.ragged_paged_attention.mosaic_gpu_prefill import Items, PrefillShape, paged_prefill
from pallas_kernels.ragged_paged_attention.mosaic_gpu_softmax import LOG2_E, MASKED, WGMMA_ROWS, Options
from pallas_kernels.ragged_paged_attention.mosaic_gpu_tiles import HOPPER, decode_slots, decode_splits, prefill_slots

TINY = float(np.finfo(np.float32).tiny)


class _Rows(NamedTuple):
    """The rows of the batch: page_table [R, M], query_start [R + 1], kv_length [R]."""

    page_table: jax.Array
    query_start: jax.Array
    kv_length: jax.Array

    @property
    def counts(self) -> jax.Array:
        """Queries of each row."""
        return self.query_start[1:] - self.query_start[:-1]


class _Call(NamedTuple):
    """What both kernels are given: the whole cache, int32 [1] layer, and sinks [H] as base 2 logits or None."""

    kv_pages: jax.Array
    kv_scales: jax.Array | None
    rows: _Rows
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
    scale: float,
    kv_scales: jax.Array | None,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
    interpret: bool = False,
) -> jax.Array:
    """See api.py. With `interpret` the kernels are interpreted, on CPUs."""
    rows = _Rows(page_table, query_start, kv_length)
    # The layer is an argument, so that all layers of a model share one trace and one kernel.
    logits = None if sinks is None else sinks.astype(jnp.float32) * LOG2_E
    call = _Call(kv_pages, kv_scales, rows, jnp.full(1, layer, jnp.int32), logits)
    attended: jax.Array = _attend(q, call, options=Options(scale, window, soft_cap), interpret=interpret)
    return attended


@partial(jax.jit, static_argnames=("options", "interpret"))
def _attend(q: jax.Array, call: _Call, *, options: Options, interpret: bool) -> jax.Array:
    rows, tokens = call.rows, q.shape[0]
    token = jnp.arange(tokens, dtype=jnp.int32)
    row = jnp.sum((rows.query_start[None, 1:] <= token[:, None]).astype(jnp.int32), axis=1)
    row = jnp.minimum(row, rows.kv_length.shape[0] - 1)
    real = token < rows.query_start[-1]
    if tokens <= rows.kv_length.shape[0]:
        seen = token + 1 + rows.kv_length[row] - rows.query_start[row + 1]
        return _decode(call, q, row, jnp.where(real, seen, 0), options, interpret)
    single = rows.counts == 1
    first = q[jnp.minimum(rows.query_start[:-1], tokens - 1)]
    every_row = jnp.arange(single.shape[0], dtype=jnp.int32)
    alone = _decode(call, first, every_row, jnp.where(single, rows.kv_length, 0), options, interpret)
    together = _prefill(call, q, token, row, options, interpret)
    attended = jnp.where(single[row][:, None, None], alone[row], together)
    return jnp.where(real[:, None, None], attended, jnp.zeros((), q.dtype))


def _decode(call: _Call, q: jax.Array, row: jax.Array, length: jax.Array, options: Options, interpret: bool) -> jax.Array:
    """Attend from q [I, H, D] to the first `length` [I] keys of rows `row` [I]; 0 where there are none."""
    grouped = call.grouped(q)
    items, kv_heads, group, dim = grouped.shape
    size, pages = call.kv_pages.shape[4], call.rows.page_table.shape[1]
    padded = -(-group // mosaic.ROW_TILE) * mosaic.ROW_TILE
    key_slots, value_slots = decode_slots(dim, call.kv_pages.dtype.itemsize, HOPPER)
    keys = pages * size if options.window is None else min(pages * size, options.window)
    splits = decode_splits(items, kv_heads, keys, HOPPER)
    shape = DecodeShape(size, kv_heads, padded, dim, splits, key_slots, value_slots, options)
    parts = paged_decode(
        jnp.pad(grouped, ((0, 0), (0, 0), (0, padded - group), (0, 0))),
        call.kv_pages,
        call.kv_scales,
        call.rows.page_table,
        row,
        length,
        call.layer,
        shape=shape,
        interpret=mosaic.interpreter() if interpret else False,
    )
    # [I, K, N, G]: what the parts without keys left is never used.
    has_keys = part_has_keys(length, shape)[:, None, :, None]
    largest = jnp.where(has_keys, parts.largest[..., :group], MASKED)
    total = jnp.where(has_keys, parts.total[..., :group], 0.0)
    values = jnp.where(has_keys[..., None], parts.values[..., :group, :], 0.0)
    top = jnp.max(largest, axis=2)
    sink = None if call.sinks is None else call.sinks.reshape(1, kv_heads, group)
    top = top if sink is None else jnp.maximum(top, sink)
    weight = jnp.exp2(largest - top[:, :, None])
    whole = jnp.sum(total * weight, axis=2) + (0.0 if sink is None else jnp.exp2(sink - top))
    merged = jnp.sum(values * weight[..., None], axis=2) / jnp.maximum(whole, TINY)[..., None]
    return merged.reshape(q.shape).astype(q.dtype)


def _prefill(call: _Call, q: jax.Array, token: jax.Array, row: jax.Array, options: Options, interpret: bool) -> jax.Array:
    """Attend from q [T, H, D] for the rows of several queries; anything for other tokens. `row` [T] is each token's."""
    rows, grouped = call.rows, call.grouped(q)
    tokens, kv_heads, group, dim = grouped.shape
    padded = 1 << (group - 1).bit_length()
    slots, stages = prefill_slots(dim, call.kv_pages.dtype.itemsize, HOPPER)
    shape = PrefillShape(call.kv_pages.shape[4], kv_heads, padded, dim, HOPPER.prefill_groups, slots, stages, options)
    blocks = jnp.where(rows.counts > 1, -(-rows.counts // shape.queries), 0)
    ends = jnp.cumsum(blocks)
    first_item = ends - blocks
    # An item's queries are consecutive tokens; what follows a row's last one is not looked at.
    item = jnp.arange(tokens // shape.queries + min(rows.kv_length.shape[0], tokens // 2), dtype=jnp.int32)
    item_row = jnp.minimum(jnp.sum((ends[None, :] <= item[:, None]).astype(jnp.int32), axis=1), rows.kv_length.shape[0] - 1)
    first_token = rows.query_start[item_row] + (item - first_item[item_row]) * shape.queries
    last_token = rows.query_start[item_row + 1]
    items = Items(
        row=item_row,
        position=rows.kv_length[item_row] - last_token + first_token,
        queries=jnp.where(item < ends[-1], jnp.minimum(last_token - first_token, shape.queries), 0),
        length=rows.kv_length[item_row],
    )
    picked = jnp.clip(first_token[:, None] + jnp.arange(shape.queries, dtype=jnp.int32)[None, :], 0, tokens - 1)  # [I, Q]
    packed = jnp.pad(grouped[picked], ((0, 0),) * 3 + ((0, padded - group), (0, 0)))  # [I, Q, K, G', D]
    packed = packed.transpose(0, 2, 1, 3, 4).reshape(item.shape[0], kv_heads, shape.groups, WGMMA_ROWS, dim)
    interpreter = mosaic.interpreter() if interpret else False
    attended, logarithm = paged_prefill(
        packed, call.kv_pages, call.kv_scales, rows.page_table, items, call.layer, shape=shape, interpret=interpreter
    )
    query = token - rows.query_start[row]
    where = jnp.minimum(first_item[row] + query // shape.queries, item.shape[0] - 1), query % shape.queries
    apart = (item.shape[0], kv_heads, shape.queries, padded)
    out = attended.reshape(*apart, dim)[where[0], :, where[1], :group]
    if call.sinks is not None:
        sums = logarithm.reshape(apart)[where[0], :, where[1], :group]
        kept = 1.0 / (1.0 + jnp.exp2(call.sinks.reshape(1, kv_heads, group) - sums))
        out = (out.astype(jnp.float32) * kept[..., None]).astype(q.dtype)
    return out.reshape(q.shape)
