"""What the pieces of decode's segments left, merged into results in Mosaic GPU; one kernel, whatever they were cut into.

A thread block takes 8 rows of a tile and a KV head. The pieces of a segment lie side by side, so 8 of them are a matrix of 64
rows, row r being row r % 8 of piece r // 8; each of these runs its own online softmax over the pieces, 8 by 8, and at the end
the 8 that are of the same row are put together, with the sinks. It reads what is in the second level cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.ragged_paged_attention import mosaic_gpu_work as line
from pallas_kernels.ragged_paged_attention.mosaic_gpu_decode import DecodeShape, Partials
from pallas_kernels.ragged_paged_attention.mosaic_gpu_softmax import MASKED
from pallas_kernels.ragged_paged_attention.mosaic_gpu_work import QueryTiles, Work

ROWS = mosaic.ROW_TILE
PIECES = line.MERGED_AT_ONCE
CHUNK_ROWS = PIECES * ROWS
WHOLE_COLUMNS, PART_COLUMNS = 128, 64  # up to which all are added at once, and how many of more


@dataclass(frozen=True)
class MergeShape:
    """Static arguments of the kernel.

    Attributes:
        decode: of the kernel that left the pieces.
        heads: G, query heads of a KV head.
        depth: chunks of 8 pieces in shared memory.
    """

    decode: DecodeShape
    heads: int
    depth: int


def merge(
    partials: Partials,
    tiles: QueryTiles,
    work: Work,
    sinks: jax.Array | None,
    *,
    shape: MergeShape,
    tokens: int,
    dtype: Any,
    interpret: Any,
) -> jax.Array:
    """Merge the pieces of each tile.

    Args:
        partials: what the pieces left.
        tiles: what their rows are.
        work: how they were cut.
        sinks: f32 [K, G] as base 2 logits, or None.
        shape: the static arguments.
        tokens: T.
        dtype: of the result.
        interpret: `mosaic.interpreter()` to run on CPUs, False to compile.

    Returns:
        [T, K, G, D]; 0 for tokens of tiles without queries, anything for tokens of no tile.
    """
    decode, groups = shape.decode, partials.values.shape[0]
    if sinks is not None:  # a copy for each of the pieces of a chunk, so that a sink is loaded like what it is compared with
        if decode.shared > 1:
            padded = jnp.repeat(sinks.reshape(-1, decode.group), decode.shared, axis=0)
        else:
            padded = jnp.pad(sinks, ((0, 0), (0, decode.group - shape.heads)))
        repeated = jnp.tile(padded, (1, decode.queries)).reshape(decode.kv_heads, groups, 1, ROWS)
        sinks = jnp.tile(repeated, (1, 1, PIECES, 1)).reshape(decode.kv_heads, groups, CHUNK_ROWS)
    sums = partials.sums.reshape(groups, 2, -1)
    run = plgpu.kernel(
        partial(_kernel, shape=shape),
        out_type=jax.ShapeDtypeStruct((tokens, decode.kv_heads, shape.heads, decode.dim), dtype),
        grid=(groups, decode.kv_heads, tiles.row.shape[0]),
        grid_names=("rows", "head", "tile"),
        scratch_types=_scratch(shape, dtype),
        # Layouts are all written out here; to infer them takes half a minute.
        compiler_params=plgpu.CompilerParams(approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane),
        kernel_name="merge_decode",
        interpret=interpret,
    )
    merged: jax.Array = run(partials.values, sums, tiles.queries, tiles.token, work.end, sinks)
    return merged


def _scratch(shape: MergeShape, dtype: Any) -> list[Any]:
    """Describe the shared memory, in the order of `_Refs`."""
    dim = shape.decode.dim
    return [
        plgpu.SMEM((shape.depth, CHUNK_ROWS, dim), jnp.float32),
        plgpu.SMEM((CHUNK_ROWS, dim), jnp.float32),
        plgpu.SMEM((2, 2 * CHUNK_ROWS), jnp.float32),
        plgpu.SMEM((ROWS, dim), dtype),
        plgpu.Barrier(num_arrivals=PIECES, num_barriers=shape.depth),
    ]


class _Refs(NamedTuple):
    """Memory of the kernel, in the order of its arguments: inputs, outputs, scratch."""

    values: Any
    sums: Any
    queries: Any
    token: Any
    end: Any
    sinks: Any
    out: Any
    chunks: Any
    scaled: Any
    rotating: Any
    result: Any
    loaded: Any


class _Pieces(NamedTuple):
    """The pieces of a segment: `number` from place `slot` on."""

    slot: jax.Array
    number: jax.Array


class _Sums(NamedTuple):
    """Softmaxes of the rows of a chunk: f32 [64, D'] parts of D, largest logit and sum of weights f32 [64]."""

    values: tuple[jax.Array, ...]
    largest: jax.Array
    total: jax.Array


def _kernel(*arguments: Any, shape: MergeShape) -> None:
    refs = _Refs(*arguments)
    rows, head, tile = (lax.axis_index(axis) for axis in ("rows", "head", "tile"))
    queries, token = refs.queries[tile], refs.token[tile]

    @pl.when(rows * ROWS < queries * shape.decode.group)
    def _merge() -> None:
        pieces = _pieces_of(refs, tile, head, shape.decode)
        sums = _all_pieces(refs, rows, pieces, shape)
        _store(refs, _whole(refs, sums, rows, head, shape), shape)
        _leave(refs, rows, head, token, queries, shape)

    @pl.when((queries == 0) & (token < 0))
    def _nothing() -> None:
        layout = _strided(shape.decode.dim)
        _store(refs, plgpu.layout_cast(jnp.zeros((ROWS, shape.decode.dim), jnp.float32), layout), shape)
        _leave(refs, rows, head, -1 - token, jnp.int32(1), shape)


def _pieces_of(refs: _Refs, tile: jax.Array, head: jax.Array, shape: DecodeShape) -> _Pieces:
    total = shape.kv_heads * refs.end[refs.queries.shape[0]]
    blocks = refs.end[tile + 1] - refs.end[tile]
    begin = shape.kv_heads * refs.end[tile] + head * blocks
    first, last = (line.worker_of(block, total, shape.all_workers) for block in (begin, begin + blocks - 1))
    return _Pieces(line.slot_of(tile * shape.kv_heads + head, first), last - first + 1)


def _all_pieces(refs: _Refs, rows: jax.Array, pieces: _Pieces, shape: MergeShape) -> _Sums:
    def load(chunk: jax.Array) -> None:
        buffer = lax.rem(chunk, jnp.int32(shape.depth))
        for i in range(PIECES):
            piece, loaded = chunk * PIECES + i, refs.loaded.at[buffer]
            into = refs.chunks.at[buffer, pl.ds(i * ROWS, ROWS)]
            source = refs.values.at[rows, pieces.slot + piece]
            pl.when(piece < pieces.number)(partial(plgpu.copy_gmem_to_smem, source, into, loaded))
            pl.when(piece >= pieces.number)(partial(plgpu.barrier_arrive, loaded))

    chunks = lax.div(pieces.number + (PIECES - 1), jnp.int32(PIECES))
    for chunk in range(shape.depth):
        pl.when(chunk < chunks)(partial(load, jnp.int32(chunk)))

    def step(chunk: jax.Array, state: _Sums) -> _Sums:
        buffer = lax.rem(chunk, jnp.int32(shape.depth))
        left = pieces.number - chunk * PIECES  # what lies behind the last piece may be anything
        largest, total = (_of_chunk(refs.sums.at[rows, which], pieces.slot + chunk * PIECES) for which in range(2))
        real = lax.div(_row((CHUNK_ROWS,)), jnp.int32(ROWS)) < left
        top = jnp.maximum(state.largest, jnp.where(real, largest, MASKED))
        fade, weight = jnp.exp2(state.largest - top), jnp.where(real, jnp.exp2(largest - top), 0.0)
        plgpu.barrier_wait(refs.loaded.at[buffer])
        values = tuple(
            lax.optimization_barrier(_added(old, fade, refs.chunks.at[buffer, :, part], weight, left))
            for old, part in zip(state.values, _parts_of(shape.decode.dim), strict=True)
        )
        pl.when(chunk + shape.depth < chunks)(partial(load, chunk + shape.depth))
        return _Sums(values, top, state.total * fade + jnp.where(real, total * weight, 0.0))

    sums: _Sums = lax.fori_loop(0, chunks, step, _before_any_piece(shape.decode.dim))
    return sums


def _added(sums: jax.Array, fade: jax.Array, chunk: Any, weight: jax.Array, left: jax.Array) -> jax.Array:
    """Add what the first `left` pieces of a chunk have, weighted, to the faded sums."""
    values = plgpu.load(chunk, layout=plgpu.Layout.WGMMA, optimized=False)
    real = lax.div(_row(values.shape), jnp.int32(ROWS)) < left
    return sums * _wide(fade, sums) + jnp.where(real, values * _wide(weight, values), 0.0)


def _whole(refs: _Refs, sums: _Sums, rows: jax.Array, head: jax.Array, shape: MergeShape) -> jax.Array:
    """Put the 8 softmaxes of each row together. Returns f32 [8, D]."""
    top = _over_pieces(refs.rotating.at[0], sums.largest, jnp.maximum)
    sink = None if refs.sinks is None else plgpu.load(refs.sinks.at[head, rows], layout=_reduced(), optimized=False)
    top = top if sink is None else jnp.maximum(top, sink)
    weight = jnp.exp2(sums.largest - top)
    total = _over_pieces(refs.rotating.at[1], sums.total * weight, jnp.add)
    total = total if sink is None else total + jnp.exp2(sink - top)
    scaled = refs.scaled
    for values, part in zip(sums.values, _parts_of(shape.decode.dim), strict=True):
        scaled[:, part] = values * _wide(weight / total, values)
    layout = _strided(shape.decode.dim)
    return sum(
        (plgpu.load(scaled.at[pl.ds(i * ROWS, ROWS)], layout=layout, optimized=False) for i in range(1, PIECES)),
        plgpu.load(scaled.at[pl.ds(0, ROWS)], layout=layout, optimized=False),
    )


def _store(refs: _Refs, result: jax.Array, shape: MergeShape) -> None:
    refs.result[...] = result.astype(refs.result.dtype)
    plgpu.commit_smem()


def _leave(refs: _Refs, rows: jax.Array, head: jax.Array, token: jax.Array, queries: jax.Array, shape: MergeShape) -> None:
    """Copy those of the 8 rows out that are heads of queries."""
    heads, group = shape.heads, shape.decode.group

    def copy(first: Any, count: int, query: jax.Array, head_of_group: Any) -> None:
        into = refs.out.at[token + query, head, pl.ds(head_of_group, count)]
        plgpu.copy_smem_to_gmem(refs.result.at[pl.ds(first, count)], into)

    if group < ROWS:
        for i in range(ROWS // group):
            query = rows * (ROWS // group) + i
            pl.when(query < queries)(partial(copy, i * group, heads, query, 0))
    else:
        query, offset = lax.div(rows * ROWS, jnp.int32(group)), lax.rem(rows * ROWS, jnp.int32(group))
        pl.when(offset + ROWS <= heads)(partial(copy, 0, ROWS, query, offset))
        if heads % ROWS:
            own = lax.rem(head, jnp.int32(shape.decode.shared)) * heads
            pl.when(offset == heads // ROWS * ROWS)(partial(copy, own, heads % ROWS, query, offset))
    plgpu.wait_smem_to_gmem(0)


def _parts_of(dim: int) -> list[Any]:
    """Return the columns of each part of D: a sum and what is added to it must both fit the registers."""
    width = dim if dim <= WHOLE_COLUMNS else PART_COLUMNS
    return [pl.ds(first, min(width, dim - first)) for first in range(0, dim, width)]


def _before_any_piece(dim: int) -> _Sums:
    values = tuple(
        plgpu.layout_cast(jnp.zeros((CHUNK_ROWS, part.size), jnp.float32), plgpu.Layout.WGMMA) for part in _parts_of(dim)
    )
    largest = plgpu.layout_cast(jnp.full((CHUNK_ROWS,), MASKED, jnp.float32), _reduced())
    return _Sums(values, largest, plgpu.layout_cast(jnp.zeros((CHUNK_ROWS,), jnp.float32), _reduced()))


def _of_chunk(sums: Any, slot: jax.Array) -> jax.Array:
    loaded: jax.Array = plgpu.load(sums.at[pl.ds(slot * ROWS, CHUNK_ROWS)], layout=_reduced(), optimized=False)
    return loaded


def _over_pieces(twice: Any, sums: jax.Array, combine: Any) -> jax.Array:
    """Combine [64] over the 8 rows that are the same row of the tile, for each of them, through [128] of shared memory."""
    twice[pl.ds(0, CHUNK_ROWS)] = sums
    twice[pl.ds(CHUNK_ROWS, CHUNK_ROWS)] = sums
    whole = sums
    for i in range(1, PIECES):  # the rows of another piece, in a circle
        whole = combine(whole, plgpu.load(twice.at[pl.ds(i * ROWS, CHUNK_ROWS)], layout=_reduced(), optimized=False))
    return whole


def _row(shape: tuple[int, ...]) -> jax.Array:
    layout = plgpu.Layout.WGMMA if len(shape) == 2 else _reduced()
    index: jax.Array = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=layout)
    return index


def _wide(rows: jax.Array, like: jax.Array) -> jax.Array:
    return lax.broadcast_in_dim(rows, like.shape, [0])


def _reduced() -> Any:
    return plgpu.Layout.WGMMA.reduce(1)


def _strided(dim: int) -> Any:
    return plgpu.Layout.WG_STRIDED((ROWS, dim), vec_size=gcd(ROWS * dim // 128, 4))
