"""ragged_paged_attention in Triton through jax-triton, for GPUs that Mosaic's kernels are not for: A100, B200 and others.

Queries of a row are put into tiles, as many as fill the rows of a matrix product with the query heads of a KV head. A program
takes a tile, a KV head and a share of the keys that the tile sees; where tiles and KV heads are too few to fill a GPU, the keys
of each tile are shared among several programs, and XLA merges what these leave (flash-decoding, Dao et al. 2023).

Imported only where it is chosen. It has never run on a GPU: run `python -m jaxserve.verify kernels --device gpu` before you rely
on it. Tests run it in Triton's interpreter and compile it for an A100 and a B200.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax_triton
import numpy as np
import triton
from jax import lax

from pallas_kernels.ragged_paged_attention import triton_kernel
from pallas_kernels.ragged_paged_attention.options import AttentionOptions
from pallas_kernels.ragged_paged_attention.query_tiles import Rows, cut, token_rows
from pallas_kernels.registry import Target

LEAST_ROWS = 16  # of a matrix product: fewer query heads are padded up to it
TILE_ROWS = 64
PROGRAMS = 2 * 132  # that fill a GPU: two for each multiprocessor; an A100 has 108, a B200 148
MOST_SHARES = 16
SHARE_KEYS = 512  # fewer than these are not worth a program that is merged
PTX_VERSION = 87  # of CUDA 12.8, the first for a B200; by itself Triton asks for that of its own, newer assembler
LOWEST = float(np.finfo(np.float32).min)  # unlike -inf it can be subtracted from itself
LOG2_E = 1.4426950408889634


class _Inputs(NamedTuple):
    """See api.py; a cache in float8 is bytes, another has one scale that nobody reads."""

    q: jax.Array
    kv_pages: jax.Array
    kv_scales: jax.Array
    page_table: jax.Array


class _Tiles(NamedTuple):
    """Queries of one row each, int32 [I].

    Attributes:
        row: of the batch.
        position: of the first query in its row.
        queries: how many, consecutive; 0 for none.
        token: the first query's. A tile without queries writes 0 there; below 0 it writes nothing.
    """

    row: jax.Array
    position: jax.Array
    queries: jax.Array
    token: jax.Array


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
    target: Target,
) -> jax.Array:
    """See api.py."""
    rows, tokens = Rows(page_table, query_start, kv_length), q.shape[0]
    group = q.shape[1] // kv_pages.shape[3]
    token = jnp.arange(tokens, dtype=jnp.int32)
    row, real = token_rows(rows, token)
    sink = jnp.full(q.shape[1], LOWEST, jnp.float32) if sinks is None else sinks.astype(jnp.float32) * LOG2_E
    if kv_pages.dtype == jnp.float8_e4m3fn:
        kv_pages = lax.bitcast_convert_type(kv_pages, jnp.uint8)
    inputs = _Inputs(q, kv_pages, jnp.ones(1, jnp.float32) if kv_scales is None else kv_scales, page_table)
    padded = triton.next_power_of_2(group)
    if tokens <= rows.kv_length.shape[0]:
        position = jnp.where(real, token + kv_length[row] - query_start[row + 1], 0)
        each = _Tiles(row, position, real.astype(jnp.int32), token)
        return _attend(inputs, each, layer, sink, options, max(LEAST_ROWS, padded), padded, target)
    few = TILE_ROWS // padded
    tiles = cut(rows, rows.counts, few, tokens // few + min(rows.kv_length.shape[0], tokens))
    tile = _Tiles(tiles.row, tiles.position, tiles.queries, jnp.where(tiles.queries > 0, tiles.token, -1))
    attended = _attend(inputs, tile, layer, sink, options, TILE_ROWS, padded, target)
    return jnp.where(real[:, None, None], attended, jnp.zeros((), q.dtype))


def _attend(
    inputs: _Inputs,
    tiles: _Tiles,
    layer: int,
    sink: jax.Array,
    options: AttentionOptions,
    tile_rows: int,
    padded_group: int,
    target: Target,
) -> jax.Array:
    """Attend from tiles of `tile_rows // padded_group` queries; `sink` f32 [H] are base 2 logits."""
    q, kv_pages, _, page_table = inputs
    (tokens, heads, dim), (_, num_pages, _, kv_heads, page_size, _) = q.shape, kv_pages.shape
    shares = _shares(tiles.row.shape[0] * kv_heads, page_table.shape[1] * page_size)
    values = jax.ShapeDtypeStruct((shares, tokens, heads, dim), q.dtype if shares == 1 else jnp.float32)
    sums = jax.ShapeDtypeStruct((2, shares, tokens, heads), jnp.float32)
    wide, quantized = dim > 128, kv_pages.dtype in (jnp.uint8, jnp.int8)
    attended, (largest, total) = jax_triton.triton_call(
        *inputs,
        *tiles,
        jnp.full(1, layer, jnp.int32),  # an array, so that all layers of a model share one kernel
        sink,
        kernel=triton_kernel.attend,
        out_type=(values, sums),
        compute_capability=_capability(target),
        grid=(tiles.row.shape[0], kv_heads, shares),
        num_warps=8 if (wide or quantized) and tile_rows > LEAST_ROWS else 4,  # else registers are spilled
        num_stages=2,
        backend_options={"enable_fp_fusion": True, "ptx_version": PTX_VERSION},
        tokens=tokens,
        pages_per_row=page_table.shape[1],
        num_pages=num_pages,
        kv_heads=kv_heads,
        group=heads // kv_heads,
        padded_group=padded_group,
        tile_rows=tile_rows,
        page_size=page_size,
        dim=dim,
        columns=triton.next_power_of_2(dim),
        scale=options.scale * (LOG2_E if options.soft_cap is None else 1.0),
        window=options.window or 0,
        soft_cap=options.soft_cap or 0.0,
        block_keys=32 if wide else 64,
        shares=shares,
        quantized=quantized,
    )
    if shares == 1:
        whole: jax.Array = attended[0]
        return whole
    weight = jnp.exp2(largest - jnp.max(largest, axis=0)[None])
    merged = jnp.sum(attended * weight[..., None], axis=0) / jnp.sum(total * weight, axis=0)[..., None]
    return merged.astype(q.dtype)


def _shares(programs: int, longest: int) -> int:
    """Return in how many shares the keys of each tile are taken, where there are so many pairs of a tile and a KV head."""
    return max(1, min(PROGRAMS // programs, -(-longest // SHARE_KEYS), MOST_SHARES))


def _capability(target: Target) -> int:
    """Return what to compile for: programs for 8.0 run on every 8.x, of later ones each is compiled for itself."""
    assert target.capability is not None, "runs_on asks"
    major, minor = target.capability
    return 80 if major == 8 else 10 * major + minor
