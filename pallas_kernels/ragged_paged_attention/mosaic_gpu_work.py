"""The work list of decode: an equal share of a batch's keys for every worker, whatever the lengths of its rows.

Queries of a row are put into tiles. A tile and a KV head are a segment of blocks of BLOCK_KEYS keys; all segments, one behind
the other, are one line of blocks, heads of a tile side by side, of which every worker takes a contiguous share. Where a share
begins or ends within a segment, the segment is in pieces, one a worker, that are merged afterwards (stream-K, Osama et al.
2023, for attention as in FlashInfer, Ye et al. 2025).

The list depends on nothing but the rows of the batch, so layers of the same window share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.ragged_paged_attention.mosaic_gpu_softmax import BLOCK_KEYS

MERGED_AT_ONCE = 8  # pieces


@dataclass(frozen=True)
class Workers:
    """Who takes shares.

    Attributes:
        count: of them.
        least_blocks: of a share, unless it is the only one: shorter ones cost more to merge than they hide.
    """

    count: int
    least_blocks: int


class QueryTiles(NamedTuple):
    """Queries of one row each, int32 [I].

    Attributes:
        row: of the batch.
        position: of the first query in its row.
        queries: how many, consecutive; 0 for a tile without work.
        token: the first query's; where a tile has no work ~t for a token t whose result is 0, else any that is not below 0.
    """

    row: jax.Array
    position: jax.Array
    queries: jax.Array
    token: jax.Array


class Work(NamedTuple):
    """The list: arrays here, references to memory in kernels.

    Attributes:
        end: int32 [I + 1], blocks of one KV head before each tile, and of all tiles.
        tile: int32 [2 * N + I]: those that each worker begins with, those that each ends with, the next ones that have work.
    """

    end: Any
    tile: Any


class Keys(NamedTuple):
    """The keys [start, end) that the queries of a tile see, in blocks [block, block + blocks)."""

    start: jax.Array
    end: jax.Array
    block: jax.Array
    blocks: jax.Array


class Share(NamedTuple):
    """What a worker takes of the line: blocks [begin, end)."""

    begin: jax.Array
    end: jax.Array


class Piece(NamedTuple):
    """What a worker takes of a segment: `blocks` from the segment's block `block` on."""

    tile: jax.Array
    head: jax.Array
    block: jax.Array
    blocks: jax.Array


def keys_of(position: jax.Array, queries: jax.Array, window: int | None) -> Keys:
    """Return the keys of a tile, or of all."""
    start = jnp.zeros_like(position) if window is None else jnp.maximum(position - (window - 1), 0)
    end = position + queries
    block = lax.div(start, jnp.full_like(start, BLOCK_KEYS))
    blocks = lax.div(end + (BLOCK_KEYS - 1), jnp.full_like(end, BLOCK_KEYS)) - block
    return Keys(start, end, block, jnp.where(queries > 0, blocks, 0))


def plan(tiles: QueryTiles, *, window: int | None, kv_heads: int, workers: Workers) -> Work:
    """Make the list. Sums are of comparisons: a kernel each, where a cumulative sum is several."""
    blocks = keys_of(tiles.position, tiles.queries, window).blocks
    count = blocks.shape[0]
    before = jnp.arange(count, dtype=jnp.int32)[None, :] < jnp.arange(count + 1, dtype=jnp.int32)[:, None]
    end = jnp.sum(jnp.where(before, blocks[None, :], 0), axis=1, dtype=jnp.int32)
    share = share_of(jnp.arange(workers.count, dtype=jnp.int32), kv_heads * end[-1], workers)
    wanted = jnp.concatenate([share.begin, share.end - 1, kv_heads * end[1:]])
    return Work(end, jnp.sum((kv_heads * end[None, 1:-1] <= wanted[:, None]).astype(jnp.int32), axis=1))


def share_of(worker: jax.Array, total: jax.Array, workers: Workers) -> Share:
    """Return a worker's share of `total` blocks: as many as any other's, or one more."""
    active, each, more = _shares(total, workers)
    begin = worker * each + jnp.minimum(worker, more)
    length = jnp.where(worker < active, each + (worker < more).astype(jnp.int32), 0)
    return Share(begin, begin + length)


def worker_of(block: jax.Array, total: jax.Array, workers: Workers) -> jax.Array:
    """Return whose share has a block of the line: the inverse of `share_of`."""
    _, each, more = _shares(total, workers)
    longer = more * (each + 1)
    return jnp.where(block < longer, lax.div(block, each + 1), more + lax.div(block - longer, jnp.maximum(each, 1)))


def _shares(total: jax.Array, workers: Workers) -> tuple[jax.Array, jax.Array, jax.Array]:
    """How many workers have a share, how many blocks each, and how many of them have one more."""
    active = jnp.clip(lax.div(total, jnp.int32(workers.least_blocks)), 1, workers.count)
    each = lax.div(total, active)
    return active, each, total - each * active


def walk(work: Work, worker: Any, visit: Callable[[Piece, Any], None], *, kv_heads: int, workers: Workers) -> None:
    """Call `visit` for each piece of a worker's share, in order, with the blocks that come before it in the share."""
    count = work.end.shape[0] - 1
    share = share_of(worker, kv_heads * work.end[count], workers)

    def segment_of(tile: Any, block: Any) -> tuple[Any, Any]:
        """The head of a tile that has a block of the line, and which of the head's blocks it is."""
        first, blocks = kv_heads * work.end[tile], work.end[tile + 1] - work.end[tile]
        head = lax.div(block - first, jnp.maximum(blocks, 1))
        return head, block - first - head * blocks

    def step(_: Any, at: tuple[Any, Any]) -> tuple[Any, Any]:
        tile, block = at
        head, within = segment_of(tile, block)
        blocks = work.end[tile + 1] - work.end[tile]
        piece = Piece(tile, head, within, jnp.minimum(blocks - within, share.end - block))
        pl.when(piece.blocks > 0)(lambda: visit(piece, block - share.begin))
        block += piece.blocks
        return jnp.where(block == kv_heads * work.end[tile + 1], work.tile[2 * workers.count + tile], tile), block

    # Tiles without work between the first and the last make this more than there are: the loop then ends with empty pieces.
    # A warp has no loop that ends on a condition.
    first, last = work.tile[worker], work.tile[workers.count + worker]
    pieces = (last - first) * kv_heads + segment_of(last, share.end - 1)[0] - segment_of(first, share.begin)[0] + 1
    lax.fori_loop(0, jnp.where(share.end > share.begin, pieces, 0), step, (first, share.begin))


def slots(tiles: int, kv_heads: int, workers: Workers) -> int:
    """Return how many places the results of all pieces need, and MERGED_AT_ONCE, which are read beside the last ones."""
    return tiles * kv_heads + workers.count + MERGED_AT_ONCE


def slot_of(segment: Any, worker: Any) -> Any:
    """Return the place of a piece. From one piece to the next the segment or the worker grows: no two share a place.

    The pieces of a segment are side by side.
    """
    return segment + worker
