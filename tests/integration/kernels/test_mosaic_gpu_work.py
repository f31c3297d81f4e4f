"""Who takes which keys in a decode of the Mosaic GPU kernels: by the functions that the kernels walk by, run by XLA."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.ragged_paged_attention import mosaic_gpu_work as line
from pallas_kernels.ragged_paged_attention.mosaic_gpu_softmax import BLOCK_KEYS
from pallas_kernels.ragged_paged_attention.mosaic_gpu_tiles import HOPPER
from pallas_kernels.ragged_paged_attention.mosaic_gpu_work import QueryTiles, Workers

ALL = Workers(HOPPER.multiprocessors * HOPPER.decode_workers, HOPPER.least_blocks)
ONE_LONG = (128 * 1024, *(1024 for _ in range(63)))


def tiles_of(lengths: tuple[int, ...], queries: int = 1) -> QueryTiles:
    """A tile a row; none where there are no keys."""
    length = np.asarray(lengths, np.int32)
    row = np.arange(len(lengths), dtype=np.int32)
    parts = row, np.maximum(length - queries, 0), np.where(length > 0, np.int32(queries), np.int32(0)), row
    return QueryTiles(*map(jnp.asarray, parts))


def taken(tiles: QueryTiles, kv_heads: int, workers: Workers, window: int | None = None) -> np.ndarray:
    """How often each worker takes each block: [N, I, K, blocks]; checks where the results of its pieces go."""
    work = jax.jit(partial(line.plan, window=window, kv_heads=kv_heads, workers=workers))(tiles)
    count, most = tiles.row.shape[0], int(np.diff(np.asarray(work.end)).max())
    places = np.zeros(line.slots(count, kv_heads, workers), int)

    @jax.jit
    def walk(worker: jax.Array) -> jax.Array:
        found = jax.new_ref(jnp.zeros((count, kv_heads, most), jnp.int32))
        before = jax.new_ref(jnp.int32(0))

        def visit(piece: line.Piece, done: Any) -> None:
            block = jnp.arange(most)
            found[piece.tile, piece.head] += ((block >= piece.block) & (block < piece.block + piece.blocks)).astype(jnp.int32)
            found[piece.tile, piece.head] += jnp.where(before[...] == done, 0, 1000)
            before[...] += piece.blocks

        line.walk(work, worker, visit, kv_heads=kv_heads, workers=workers)
        return jax.freeze(found)

    found = np.stack([np.asarray(walk(jnp.int32(worker))) for worker in range(workers.count)])
    for worker, tile, head in np.argwhere(found.sum(axis=3) > 0):
        places[line.slot_of(tile * kv_heads + head, worker)] += 1
    assert places.max(initial=0) <= 1
    return found


@pytest.mark.parametrize("kv_heads", [1, 8])
def test_one_long_row_does_not_keep_the_others_waiting(kv_heads):
    each = taken(tiles_of(ONE_LONG), kv_heads, ALL).sum(axis=(1, 2, 3))
    assert each.sum() * BLOCK_KEYS == sum(ONE_LONG) * kv_heads
    blocks = each.reshape(HOPPER.multiprocessors, HOPPER.decode_workers).sum(axis=1)
    assert each.max() <= 1.2 * each.mean()
    assert blocks.max() <= 1.2 * blocks.mean()


@pytest.mark.parametrize(
    ("lengths", "queries", "window"),
    [
        ((1, 64, 65, 1000), 1, None),
        ((0, 0, 700, 0, 65, 0), 1, None),  # rows without work before, between and behind the others
        ((0, 0), 1, None),
        ((5,), 1, None),
        ((3, 200, 640), 3, None),
        ((129, 640, 1000), 2, 100),
    ],
)
@pytest.mark.parametrize("workers", [Workers(1, 4), Workers(7, 1), Workers(7, 4)], ids=str)
def test_every_key_is_taken_once(lengths, queries, window, workers):
    tiles, kv_heads = tiles_of(lengths, queries), 3
    found = taken(tiles, kv_heads, workers, window)
    for row, length in enumerate(lengths):
        first = 0 if window is None else max(0, length - queries - window + 1)
        blocks = -(-length // BLOCK_KEYS) - first // BLOCK_KEYS
        once = np.arange(found.shape[3]) < blocks
        np.testing.assert_array_equal(found[:, row].sum(axis=0), np.broadcast_to(once, found.shape[2:]))
    each = found.sum(axis=(1, 2, 3))
    total = int(each.sum())
    busy = each[each > 0]
    assert total == 0 or busy.max() - busy.min() <= 1
    assert busy.size == min(workers.count, max(total // workers.least_blocks, 1)) or total == 0


def test_a_block_finds_its_worker():
    share_of = jax.jit(partial(line.share_of, workers=ALL))
    worker_of = jax.jit(partial(line.worker_of, workers=ALL))
    for total in (1, 5, 100, 4321):
        share = share_of(np.arange(ALL.count, dtype=np.int32), np.int32(total))
        owner = np.repeat(np.arange(ALL.count), np.asarray(share.end - share.begin))
        np.testing.assert_array_equal(worker_of(np.arange(total, dtype=np.int32), np.int32(total)), owner)


def test_short_batches_are_not_cut_into_small_pieces():
    found = taken(tiles_of((1024, 1024)), 1, ALL)
    assert (found.sum(axis=(1, 2, 3)) > 0).sum() == 2 * 1024 // BLOCK_KEYS // HOPPER.least_blocks
