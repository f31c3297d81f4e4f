"""Decode attention in other shapes than the cases of `decode`: heads of one of eight GPUs, larger pages, uneven rows, drafts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.pages import NULL_PAGES, random_array
from benchmarks.gpu.programs import Program, compile_all, facts
from benchmarks.gpu.sizes import DTYPE, DecodeShape, Sizes
from benchmarks.gpu.tasks import Figure, Task
from benchmarks.gpu.timing import time_calls
from pallas_kernels.ragged_paged_attention import AttentionOptions, ragged_paged_attention
from pallas_kernels.registry import Target


def tasks(sizes: Sizes) -> Iterator[Task]:
    """Compile everything, then time it."""
    device = jax.devices()[0]
    chosen = [(shape, program(shape, kernel, sizes, Target.of(device))) for shape in sizes.shapes for kernel in sizes.kernels]
    compiled = compile_all([each for _, each in chosen], device)
    for (shape, each), future in zip(chosen, compiled, strict=True):
        yield Task(each.labels, _timed(shape, each, future.result, sizes))


def more_tasks(sizes: Sizes) -> Iterator[Task]:
    """The batches of the second command."""
    yield from tasks(replace(sizes, shapes=sizes.more_shapes, kernels=sizes.more_kernels))


def program(shape: DecodeShape, kernel: str, sizes: Sizes, target: Target) -> Program:
    """(q, cache, query_start, kv_length, a table of each operation) -> q, over a cache of one layer."""
    options = AttentionOptions(shape.heads.dim**-0.5)

    def attend(q: jax.Array, cache: jax.Array, start: jax.Array, length: jax.Array, *tables: jax.Array) -> jax.Array:
        for table in tables:
            q = ragged_paged_attention(
                q, cache, table, start, length, layer=0, options=options, implementation=kernel, target=target
            )
        return q

    rows, heads, count = len(shape.lengths), shape.heads, operations(shape, sizes)
    cache = (1, count * pages(shape) + NULL_PAGES, 2, heads.kv, shape.page_size, heads.dim)
    shapes = (
        jax.ShapeDtypeStruct((rows * shape.queries, heads.query, heads.dim), DTYPE),
        jax.ShapeDtypeStruct(cache, DTYPE),
        jax.ShapeDtypeStruct((rows + 1,), jnp.int32),
        jax.ShapeDtypeStruct((rows,), jnp.int32),
        *[jax.ShapeDtypeStruct((rows, pages_of(max(shape.lengths), shape)), jnp.int32)] * count,
    )
    return Program({"shape": shape.name, "rows": rows, "implementation": kernel}, attend, shapes)


def operations(shape: DecodeShape, sizes: Sizes) -> int:
    """In a program, each with pages of its own: what one reads is not in the cache of the GPU when its turn comes again."""
    return min(max(math.ceil(sizes.rotated_bytes / kv_bytes(shape)), 1), sizes.operations)


def kv_bytes(shape: DecodeShape) -> int:
    """Bytes of the keys and values that one operation must read."""
    return sum(shape.lengths) * shape.heads.token_bytes


def pages_of(length: int, shape: DecodeShape) -> int:
    return -(-length // shape.page_size)


def pages(shape: DecodeShape) -> int:
    """Of one operation."""
    return sum(pages_of(length, shape) for length in shape.lengths)


def tables(shape: DecodeShape, count: int) -> list[jax.Array]:
    """A table [R, M] for each operation: pages in any order, each once; the null page behind a row's last."""
    order = np.random.default_rng(0).permutation(count * pages(shape)).astype(np.int32) + NULL_PAGES
    made, used = [], 0
    for _ in range(count):
        table = np.zeros((len(shape.lengths), pages_of(max(shape.lengths), shape)), np.int32)
        for row, length in enumerate(shape.lengths):
            size = pages_of(length, shape)
            table[row, :size] = order[used : used + size]
            used += size
        made.append(jnp.asarray(table))
    return made


def _timed(shape: DecodeShape, each: Program, compiled: Callable[[], jax.stages.Compiled], sizes: Sizes) -> Callable[[], Figure]:
    def measure() -> Figure:
        run, count = compiled(), operations(shape, sizes)
        cache, rows = random_array(each.shapes[1]), tables(shape, count)
        start = jnp.arange(len(shape.lengths) + 1, dtype=jnp.int32) * shape.queries
        length = jnp.asarray(shape.lengths, jnp.int32)

        def call(_: int, q: jax.Array) -> jax.Array:
            out: jax.Array = run(q, cache, start, length, *rows)
            return out

        figure, _ = time_calls(call, random_array(each.shapes[0]), sizes.pace, operations=count)
        return figure | {"kv_bytes": kv_bytes(shape)} | facts(run)

    return measure
