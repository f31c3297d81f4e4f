"""The Triton kernel: queries of a tile attend to a share of the keys of their row, by an online softmax in base 2."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def attend(
    q: tl.tensor,
    kv_pages: tl.tensor,
    kv_scales: tl.tensor,
    page_table: tl.tensor,
    tile_row: tl.tensor,
    tile_position: tl.tensor,
    tile_queries: tl.tensor,
    tile_token: tl.tensor,
    layer: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    sums_out: tl.tensor,
    tokens: tl.constexpr,
    pages_per_row: tl.constexpr,
    num_pages: tl.constexpr,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    padded_group: tl.constexpr,
    tile_rows: tl.constexpr,
    page_size: tl.constexpr,
    dim: tl.constexpr,
    columns: tl.constexpr,
    scale: tl.constexpr,
    window: tl.constexpr,
    soft_cap: tl.constexpr,
    block_keys: tl.constexpr,
    shares: tl.constexpr,
    quantized: tl.constexpr,
) -> None:
    """Program (tile, KV head, share). Row r of a tile is head r % padded_group of query r // padded_group.

    `scale` makes base 2 logits, but with a soft cap natural ones; `window` and `soft_cap` are 0 for none. A quantized cache is
    int8, or E4M3 as bytes; another's `kv_scales` are not looked at.
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    share = tl.program_id(2)
    first = tl.load(tile_position + tile)
    queries = tl.load(tile_queries + tile)
    token = tl.load(tile_token + tile)
    table = page_table + tl.load(tile_row + tile) * pages_per_row
    first_page = tl.load(layer).to(tl.int64) * num_pages
    row = tl.arange(0, tile_rows)
    query = row // padded_group
    head = kv_head * group + row % padded_group
    here = row % padded_group < group
    column = tl.arange(0, columns)
    place = ((token + query) * (kv_heads * group) + head).to(tl.int64)
    q_tile = tl.load(
        q + place[:, None] * dim + column[None, :], mask=(here & (query < queries))[:, None] & (column < dim)[None, :], other=0.0
    )
    start, end, begin, stop = _keys(first, queries, window, block_keys, shares)
    # A sink is a key without a value, and the first share's. Where there is none, the first key makes its weight 0.
    largest = tl.load(sinks + head, mask=here, other=0.0)
    total = tl.full([tile_rows], 1.0, tl.float32)
    if shares > 1:
        largest = tl.where(share == 0, largest, -3.4028234663852886e38)
        total = tl.where(share == 0, total, 0.0)
    values = tl.zeros([tile_rows, columns], tl.float32)
    for at in range(begin, stop, block_keys):
        key = at + tl.arange(0, block_keys)
        # Pages before a window may be anything: what no query sees is not read, for a weight of 0 does not undo NaN.
        live = (key >= start) & (key < end)
        page = tl.load(table + key // page_size, mask=live, other=0)
        entry = (((first_page + page) * 2) * kv_heads + kv_head) * page_size + key % page_size
        logits, v = _block(q_tile, kv_pages, kv_scales, entry, live, column, kv_heads * page_size, dim, quantized)
        logits = _seen(logits * scale, first + query, key, live, window, soft_cap)
        highest = tl.maximum(largest, tl.max(logits, axis=1))
        weights = tl.exp2(logits - highest[:, None])
        fade = tl.exp2(largest - highest)
        total = total * fade + tl.sum(weights, axis=1)
        values = values * fade[:, None] + tl.dot(weights.to(v.dtype), v)
        largest = highest
    # A tile without queries has a first one still, whose result is 0.
    left = here & (query < tl.where(token >= 0, tl.maximum(queries, 1), 0))
    sums = share * tokens * kv_heads * group + place
    if shares == 1:
        values = values / total[:, None]
    else:
        tl.store(sums_out + sums, largest, mask=left)
        tl.store(sums_out + shares * tokens * kv_heads * group + sums, total, mask=left)
    written = left[:, None] & (column < dim)[None, :]
    tl.store(out + sums[:, None] * dim + column[None, :], values.to(out.dtype.element_ty), mask=written)


@triton.jit  # type: ignore[untyped-decorator]
def _keys(
    first: tl.tensor, queries: tl.tensor, window: tl.constexpr, block_keys: tl.constexpr, shares: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The keys [start, end) that any query of a tile sees, and those [begin, stop) that are the program's share."""
    end = tl.where(queries > 0, first + queries, 0)
    start = tl.maximum(first - window + 1, 0) if window > 0 else first - first
    start_block = start // block_keys
    each = tl.cdiv(tl.cdiv(end, block_keys) - start_block, shares)
    begin = (start_block + tl.program_id(2) * each) * block_keys
    return start, end, begin, tl.minimum(end, begin + each * block_keys)


@triton.jit  # type: ignore[untyped-decorator]
def _block(
    q_tile: tl.tensor,
    kv_pages: tl.tensor,
    kv_scales: tl.tensor,
    entry: tl.tensor,
    live: tl.tensor,
    column: tl.tensor,
    half: tl.constexpr,
    dim: tl.constexpr,
    quantized: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Products of queries and those keys of `entry` that are live, 0 for others, and their values, `half` entries behind."""
    cached = kv_pages + entry[:, None] * dim + column[None, :]
    wanted = live[:, None] & (column < dim)[None, :]
    k = tl.load(cached, mask=wanted, other=0)
    v = tl.load(cached + half * dim, mask=wanted, other=0)
    if quantized:
        k_scale = tl.load(kv_scales + entry, mask=live, other=0.0).to(tl.float32)
        v_scale = tl.load(kv_scales + entry + half, mask=live, other=0.0).to(tl.float32)
        logits = tl.dot(q_tile, tl.trans(_widened(k).to(q_tile.dtype))) * k_scale[None, :]
        v = (_widened(v).to(tl.float32) * v_scale[:, None]).to(q_tile.dtype)
    else:
        logits = tl.dot(q_tile, tl.trans(k))
    return logits, v


@triton.jit  # type: ignore[untyped-decorator]
def _seen(
    logits: tl.tensor, position: tl.tensor, key: tl.tensor, live: tl.tensor, window: tl.constexpr, soft_cap: tl.constexpr
) -> tl.tensor:
    """Logits, capped, of the keys that each query sees; very small ones of others."""
    if soft_cap > 0.0:
        tanh = 2.0 * tl.sigmoid(2.0 * logits / soft_cap) - 1.0
        logits = soft_cap * 1.4426950408889634 * tanh
    visible = live[None, :] & (key[None, :] <= position[:, None])
    if window > 0:
        visible = visible & (key[None, :] > position[:, None] - window)
    return tl.where(visible, logits, -3.0e38)


@triton.jit  # type: ignore[untyped-decorator]
def _widened(numbers: tl.tensor) -> tl.tensor:
    """int8 as float32, or E4M3 bytes as float16, both exactly.

    Exponents of float16 are 8 more than those of E4M3. Only GPUs from 8.9 on have an instruction for it.
    """
    if numbers.dtype == tl.int8:
        wide = numbers.to(tl.float32)
    else:
        bits = numbers.to(tl.uint16)
        magnitude = bits & 0x7F
        wide = (((bits & 0x80) << 8) | (magnitude << 7)).to(tl.float16, bitcast=True) * 256.0
        wide = tl.where(magnitude == 0x7F, float("nan"), wide).to(tl.float16)
    return wide
