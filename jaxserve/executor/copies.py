"""Copies of whole pages within the KV cache, compiled once for a fixed number of pages a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxserve.executor.step import KV_PAGES
from jaxserve.step.plan import Ints

COPY_WIDTH = 16  # pages a call: its workspace holds as many


def make_copy(mesh: Mesh) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array]:
    """The program: (kv_pages [L,P,...,K,S,D], sources int32[COPY_WIDTH], destinations int32[COPY_WIDTH]) -> kv_pages.

    All sources are read before a destination is written. Every device copies its own heads.
    """

    def copy(kv_pages: jax.Array, sources: jax.Array, destinations: jax.Array) -> jax.Array:
        pages = kv_pages.at[:, sources].get(mode="promise_in_bounds")
        return kv_pages.at[:, destinations].set(pages, mode="promise_in_bounds")

    return jax.shard_map(copy, mesh=mesh, in_specs=(KV_PAGES, PartitionSpec(), PartitionSpec()), out_specs=KV_PAGES)


def copy_batches(copies: Sequence[tuple[int, int]]) -> Iterator[tuple[Ints, Ints]]:
    """Arguments of the calls that carry out (source, destination) pairs; the null page pads them, copied to itself.

    Raises:
        ValueError: a call would read a page that an earlier one wrote, where the pairs mean what it held before.
    """
    written: set[int] = set()
    for start in range(0, len(copies), COPY_WIDTH):
        pairs = np.zeros((2, COPY_WIDTH), np.int32)
        batch = copies[start : start + COPY_WIDTH]
        pairs[:, : len(batch)] = np.array(batch, np.int32).T
        late = written.intersection(pairs[0].tolist())
        if late:
            raise ValueError(f"page {min(late)} is copied after another page was copied to it")
        written.update(destination for _, destination in batch)
        yield pairs[0], pairs[1]
