"""Programs that move whole pages, compiled for a fixed number of pages a call, and the calls that carry out a plan's moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxserve.executor.cache_arrays import KV_CACHE, CacheArrays
from jaxserve.step.plan import Ints, MoveKind, PageMove

MOVE_WIDTH = 16  # pages a call: its workspace holds as many
_EVERYWHERE = PartitionSpec()


def make_copy(mesh: Mesh) -> Callable[[CacheArrays, jax.Array, jax.Array], CacheArrays]:
    """The program: (cache, of arrays [L,P,...,K,S,...], sources int32[MOVE_WIDTH], destinations int32[MOVE_WIDTH]) -> cache.

    All sources are read before a destination is written. Every device copies its own heads.
    """

    def copy(cache: CacheArrays, sources: jax.Array, destinations: jax.Array) -> CacheArrays:
        def copied(array: jax.Array) -> jax.Array:
            pages = array.at[:, sources].get(mode="promise_in_bounds")
            return array.at[:, destinations].set(pages, mode="promise_in_bounds")

        moved: CacheArrays = jax.tree.map(copied, cache)
        return moved

    return jax.shard_map(copy, mesh=mesh, in_specs=(KV_CACHE, _EVERYWHERE, _EVERYWHERE), out_specs=KV_CACHE)


def make_gather(mesh: Mesh) -> Callable[[CacheArrays, jax.Array], CacheArrays]:
    """The program: (cache, sources int32[MOVE_WIDTH]) -> pages, of arrays [MOVE_WIDTH,L,...,K,S,...], sharded over K."""

    def gather(cache: CacheArrays, sources: jax.Array) -> CacheArrays:
        def taken(array: jax.Array) -> jax.Array:
            return jnp.swapaxes(array.at[:, sources].get(mode="promise_in_bounds"), 0, 1)

        pages: CacheArrays = jax.tree.map(taken, cache)
        return pages

    return jax.shard_map(gather, mesh=mesh, in_specs=(KV_CACHE, _EVERYWHERE), out_specs=KV_CACHE)


def make_scatter(mesh: Mesh) -> Callable[[CacheArrays, CacheArrays, jax.Array], CacheArrays]:
    """The way back: (cache, pages, destinations int32[MOVE_WIDTH]) -> cache."""

    def scatter(cache: CacheArrays, pages: CacheArrays, destinations: jax.Array) -> CacheArrays:
        def put(array: jax.Array, pages: jax.Array) -> jax.Array:
            return array.at[:, destinations].set(jnp.swapaxes(pages, 0, 1), mode="promise_in_bounds")

        filled: CacheArrays = jax.tree.map(put, cache, pages)
        return filled

    return jax.shard_map(scatter, mesh=mesh, in_specs=(KV_CACHE, KV_CACHE, _EVERYWHERE), out_specs=KV_CACHE)


class MoveBatch(NamedTuple):
    """Moves that one call carries out: `num_moves` of them, then padding, from 0 to 0 (to the null page, if to a page)."""

    kind: MoveKind
    sources: Ints  # int32[MOVE_WIDTH]
    destinations: Ints  # int32[MOVE_WIDTH]
    num_moves: int


def move_batches(moves: Sequence[PageMove]) -> Iterator[MoveBatch]:
    """The calls that carry out moves, one after another. A call reads all its sources before it writes."""
    start = 0
    while start < len(moves):
        kind, written = moves[start].kind, set[int]()
        end = start
        for move in moves[start : start + MOVE_WIDTH]:
            reads_written = kind is MoveKind.COPY and move.source in written
            if move.kind is not kind or reads_written or move.destination in written:
                break
            written.add(move.destination)
            end += 1
        pairs = np.zeros((2, MOVE_WIDTH), np.int32)
        pairs[:, : end - start] = np.array([move[1:] for move in moves[start:end]], np.int32).T
        yield MoveBatch(kind, pairs[0], pairs[1], end - start)
        start = end
