"""Times attention programs over one cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.gpu.cases import Attention, cache_shape
from benchmarks.gpu.pages import random_array, table_sets
from benchmarks.gpu.programs import facts
from benchmarks.gpu.sizes import DTYPE, Sizes
from benchmarks.gpu.tasks import Figure
from benchmarks.gpu.timing import time_calls


class Bench:
    """A cache of one layer, filled with random numbers, that programs attend to.

    Args:
        sizes: heads and how long to measure.
        pages: of the cache.
    """

    def __init__(self, sizes: Sizes, pages: int) -> None:
        self._sizes = sizes
        self._pages = pages
        self._cache = random_array(cache_shape(sizes.heads, pages))

    def time(self, case: Attention, program: jax.stages.Compiled) -> Figure:
        """Seconds of one operation, and what it must read and compute."""
        sizes, heads = self._sizes, self._sizes.heads
        tables = table_sets(case, self._pages, heads, sizes.rotated_bytes)
        start = jnp.arange(case.rows + 1, dtype=jnp.int32) * case.queries
        length = jnp.full(case.rows, case.context, jnp.int32)
        q = random_array(jax.ShapeDtypeStruct((case.rows * case.queries, heads.query, heads.dim), DTYPE))

        def call(number: int, q: jax.Array) -> jax.Array:
            out: jax.Array = program(q, self._cache, start, length, *tables[number % len(tables)])
            return out

        figure, _ = time_calls(call, q, sizes.pace, operations=case.operations)
        work = {"kv_bytes": case.kv_bytes(heads), "flops": case.flops(heads), "table_sets": len(tables)}
        return figure | work | facts(program)
