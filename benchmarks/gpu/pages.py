"""Arrays of random numbers, and page tables that wander through all of a cache."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.cases import Attention
from benchmarks.gpu.sizes import Heads

NULL_PAGES = 1
PATTERN = 2**22  # random numbers that a large array repeats: a GPU reads random numbers slower than zeros
MOST_SETS = 32  # of page tables


def random_array(shape: jax.ShapeDtypeStruct) -> jax.Array:
    """Normal numbers; they repeat in large arrays, so that making one takes no more memory than it has."""
    # The leading axis of a cache is its one layer: its pages are what repeats.
    leading, *rest = shape.shape[1:] if shape.shape[0] == 1 and len(shape.shape) > 1 else shape.shape
    inner = math.prod(rest)

    @jax.jit
    def fill(pattern: jax.Array) -> jax.Array:
        block = jnp.resize(pattern, (-(-pattern.size // inner), inner))
        times = -(-leading // block.shape[0])
        return jnp.broadcast_to(block, (times, *block.shape)).reshape(-1, inner)[:leading].reshape(shape.shape)

    filled: jax.Array = fill(jax.random.normal(jax.random.key(0), (PATTERN,), shape.dtype))
    return filled


def pool_pages(cases: list[Attention], heads: Heads, memory_bytes: int) -> int:
    """Pages of a cache that holds the largest case, or as much as fits into `memory_bytes`."""
    largest = max(case.pages for case in cases)
    return min(largest, memory_bytes // heads.page_bytes - NULL_PAGES) + NULL_PAGES


def table_sets(case: Attention, pages: int, heads: Heads, rotated_bytes: int) -> list[list[jax.Array]]:
    """Page tables, [R, M] for each operation of a call, for the calls to take in turns: of `rotated_bytes` if the cache has them.

    Raises:
        ValueError: the cache does not hold one operation.
    """
    if case.pages > pages - NULL_PAGES:
        raise ValueError(f"it needs {case.pages} pages, and memory has room for {pages - NULL_PAGES}")
    call = case.operations * case.kv_bytes(heads)
    sets = min(max(math.ceil(rotated_bytes / call), 1), MOST_SETS)
    order = np.random.default_rng(0).permutation(pages - NULL_PAGES).astype(np.int32) + NULL_PAGES
    size = (sets, case.operations, case.rows, case.pages_per_row)
    return [[jnp.asarray(table) for table in tables] for tables in np.resize(order, size)]
