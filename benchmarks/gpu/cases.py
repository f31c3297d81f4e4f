"""The attention and kv_write programs of a run, by case and implementation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.gpu.programs import Program
from benchmarks.gpu.sizes import DTYPE, PAGE_SIZE, Heads, Sizes
from pallas_kernels.kv_write import kv_write
from pallas_kernels.ragged_paged_attention import AttentionOptions, ragged_paged_attention
from pallas_kernels.registry import Target

CHAINED_PREFILLS = 4  # operations of a prefill program at most


@dataclass(frozen=True, slots=True)
class Attention:
    """Rows that all have as many queries on as long a context.

    Attributes:
        rows, queries, context: R, queries of each row, keys of each row.
        operations: in a program, each with a page table of its own and fed by the one before.
    """

    rows: int
    queries: int
    context: int
    operations: int

    @property
    def pages_per_row(self) -> int:
        """M."""
        return -(-self.context // PAGE_SIZE)

    @property
    def pages(self) -> int:
        """Of one operation."""
        return self.rows * self.pages_per_row

    def kv_bytes(self, heads: Heads) -> int:
        """Bytes of the keys and values that one operation must read."""
        return self.rows * self.context * heads.token_bytes

    def flops(self, heads: Heads) -> int:
        """Of the two products of one operation: the pairs of a query and a key that it may see."""
        pairs = self.queries * (self.context - self.queries) + self.queries * (self.queries + 1) // 2
        return 4 * self.rows * heads.query * heads.dim * pairs


def decode_cases(sizes: Sizes, cases: tuple[tuple[int, int], ...]) -> list[Attention]:
    """Decodes of (rows, context), with so many operations to a program that its launch does not show."""
    found = []
    for rows, context in cases:
        read = Attention(rows, 1, context, 1).kv_bytes(sizes.heads)
        found.append(Attention(rows, 1, context, min(max(math.ceil(sizes.call_bytes / read), 1), sizes.operations)))
    return found


def prefill_cases(sizes: Sizes, cases: tuple[tuple[int, int], ...]) -> list[Attention]:
    """Prefills of one row of (queries, context)."""
    operations = min(CHAINED_PREFILLS, sizes.operations)
    return [Attention(1, queries, context, operations) for queries, context in cases]


def paged(case: Attention, kernel: str, sizes: Sizes, pages: int, target: Target) -> Program:
    """The operation over a cache of one layer of `pages` pages: (q, cache, query_start, kv_length, a table
    [R, M] for each operation) -> q.

    Tables are arguments of their own: a slice of one would be a kernel of its own.
    """
    heads, options = sizes.heads, AttentionOptions(sizes.heads.dim**-0.5)

    def attend(q: jax.Array, cache: jax.Array, start: jax.Array, length: jax.Array, *tables: jax.Array) -> jax.Array:
        for table in tables:
            q = ragged_paged_attention(
                q, cache, table, start, length, layer=0, options=options, implementation=kernel, target=target
            )
        return q

    shapes = (
        jax.ShapeDtypeStruct((case.rows * case.queries, heads.query, heads.dim), DTYPE),
        cache_shape(heads, pages),
        jax.ShapeDtypeStruct((case.rows + 1,), jnp.int32),
        jax.ShapeDtypeStruct((case.rows,), jnp.int32),
        *[jax.ShapeDtypeStruct((case.rows, case.pages_per_row), jnp.int32)] * case.operations,
    )
    labels = {"rows": case.rows, "queries": case.queries, "context": case.context, "implementation": kernel}
    return Program(labels, attend, shapes)


def dense(case: Attention, sizes: Sizes) -> Program:
    """The same of one row over contiguous keys and values [1, N, K, D], by jax.nn.

    A chunk on a context attends to all of the context's keys: cuDNN's causal mask would begin at the first of them.
    """
    heads = sizes.heads
    attention = partial(jax.nn.dot_product_attention, is_causal=case.queries == case.context, implementation=_known(sizes.dense))

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        for _ in range(case.operations):
            q = attention(q, k, v)
        return q

    keys = jax.ShapeDtypeStruct((1, case.context, heads.kv, heads.dim), DTYPE)
    shapes = (jax.ShapeDtypeStruct((1, case.queries, heads.query, heads.dim), DTYPE), keys, keys)
    labels = {"rows": 1, "queries": case.queries, "context": case.context, "implementation": f"dense {sizes.dense}"}
    return Program(labels, attend, shapes)


def writes(sizes: Sizes, target: Target) -> Iterator[Program]:
    """kv_write of each number of tokens and kernel: (cache, k, v, slots [T] of each operation) -> cache, in place."""
    heads = sizes.heads
    for tokens in sizes.writes:
        for kernel in sizes.kernels:
            new = jax.ShapeDtypeStruct((tokens, heads.kv, heads.dim), DTYPE)
            slots = [jax.ShapeDtypeStruct((tokens,), jnp.int32)] * sizes.operations
            shapes = (cache_shape(heads, sizes.write_pages), new, new, *slots)
            write = partial(_write, kernel=kernel, target=target)
            yield Program({"tokens": tokens, "implementation": kernel}, write, shapes, donated=(0,))


def _write(cache: jax.Array, k: jax.Array, v: jax.Array, *slots: jax.Array, kernel: str, target: Target) -> jax.Array:
    for each in slots:
        cache = kv_write(cache, k, v, each, layer=0, implementation=kernel, target=target)
    return cache


def cache_shape(heads: Heads, pages: int) -> jax.ShapeDtypeStruct:
    """A cache of one layer."""
    return jax.ShapeDtypeStruct((1, pages, 2, heads.kv, PAGE_SIZE, heads.dim), DTYPE)


def _known(name: str) -> str:
    if name not in ("xla", "cudnn"):
        raise ValueError(f"jax.nn.dot_product_attention has no {name!r}")
    return name
