"""ragged_paged_attention: causal attention of one step's tokens over the pages of their rows."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from pallas_kernels import checks
from pallas_kernels.ragged_paged_attention.chunks import by_chunk
from pallas_kernels.ragged_paged_attention.implementations import IMPLEMENTATIONS
from pallas_kernels.ragged_paged_attention.options import AttentionOptions
from pallas_kernels.ragged_paged_attention.problem import AttentionProblem
from pallas_kernels.ragged_paged_attention.query_tiles import Rows
from pallas_kernels.registry import Target, choose


def ragged_paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    query_start: jax.Array,
    kv_length: jax.Array,
    *,
    layer: int,
    options: AttentionOptions,
    kv_scales: jax.Array | None = None,
    sinks: jax.Array | None = None,
    implementation: str | None = None,
    target: Target | None = None,
) -> jax.Array:
    """Attend from every token to the keys of its own row, up to and including itself.

    Row r owns tokens query_start[r] : query_start[r + 1]. They are the last ones of its kv_length[r] keys, which
    `kv_write` has already put into pages page_table[r, 0], page_table[r, 1], ... (key j is at offset j % S of page
    j // S). So a decode is a row of one token, a prefill chunk a row of many, and both may share a call. Softmax is
    computed in float32.

    Args:
        q: [T, H, D] bf16, f16 or f32, rotated already. H is a multiple of K; query head h reads KV head h // (H // K).
        kv_pages: [L, P, 2, K, S, D] bf16, f16, f32, or f8 (E4M3) or int8 with `kv_scales`; axis 2 is key, value. With
            `options.value_dim` [L, P, 1, K, S, D]: keys alone. Page 0 is the null page. Whatever no row uses (other pages, slots
            at or after a row's length, the null page) may hold anything, NaN included.
        page_table: int32 [R, M]; entries past a row's last page, and of pages before all its windows or chunks, are ignored and
            must be valid page ids (0 will do).
        query_start: int32 [R + 1], non-decreasing from 0. Padding rows repeat the last value.
        kv_length: int32 [R], keys of the row with this step's; 0 for padding rows.
        layer: static index into L.
        options: what is computed, static.
        kv_scales: the first five axes of `kv_pages`, bf16 or f32, for a cache in f8 or int8: a key or value is its numbers times
            its scale. NaN where `kv_pages` may be.
        sinks: [H] float, for each head the logit of a key without value that every token attends to; None for none.
        implementation: a name from `implementations.py`, or None to pick by target, shapes and dtypes.
        target: the device that the program is for; the default device unless given.

    Returns:
        [T, H, D], or [T, H, options.value_dim], in q's dtype; 0 for padding tokens, those at or after query_start[R].

    Raises:
        ValueError: a shape, a static argument or the implementation's name is wrong, or that implementation cannot do
            this. Values inside arrays are not looked at: `check_inputs` does that on concrete arrays.
        TypeError: a dtype is not supported.
    """
    check_arguments(
        q, kv_pages, page_table, query_start, kv_length, layer=layer, options=options, kv_scales=kv_scales, sinks=sinks
    )
    tokens, rows = q.shape[0], Rows(page_table, query_start, kv_length)
    if options.chunk is not None:
        q, rows = by_chunk(q, rows, options.chunk, kv_pages.shape[4])
        options = replace(options, chunk=None)
    problem = AttentionProblem.of(q, kv_pages, rows.page_table, options=options, kv_scales=kv_scales, sinks=sinks)
    attend = choose("ragged_paged_attention", IMPLEMENTATIONS, implementation, target, problem)
    return attend(q, kv_pages, *rows, layer=layer, options=options, kv_scales=kv_scales, sinks=sinks)[:tokens]


def check_arguments(
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
) -> None:
    """Check the shapes and dtypes of a call; raises as the operation does."""
    checks.require_pages(kv_pages, kv_scales, layer)
    _check_queries(q, kv_pages, sinks)
    checks.require_page_rows(page_table, query_start, kv_length)
    _check_values(kv_pages, options.value_dim)
    if options.chunk is not None and options.chunk % kv_pages.shape[4]:
        raise ValueError(f"a chunk must be whole pages, and {options.chunk} positions are none of {kv_pages.shape[4]}")


def _check_values(kv_pages: jax.Array, value_dim: int | None) -> None:
    apart, dim = kv_pages.shape[2] == 2, kv_pages.shape[5]
    if apart != (value_dim is None):
        raise ValueError(f"value_dim goes with a cache that has no values: it is {value_dim}, the cache {list(kv_pages.shape)}")
    if value_dim is not None and not 1 <= value_dim <= dim:
        raise ValueError(f"value_dim must be between 1 and {dim}, got {value_dim}")


def _check_queries(q: jax.Array, kv_pages: jax.Array, sinks: jax.Array | None) -> None:
    kv_heads, dim = kv_pages.shape[3], kv_pages.shape[5]
    checks.require_shape("q", q, (None, None, dim), "[T, H, D]")
    checks.require_dtype("q", q, checks.FLOAT_DTYPES)
    tokens, heads = q.shape[:2]
    if tokens == 0:
        raise ValueError("q must have at least one token")
    if heads == 0 or heads % kv_heads:
        raise ValueError(f"q must have a multiple of the cache's {kv_heads} KV heads, got {heads} heads")
    if sinks is not None:
        checks.require_shape("sinks", sinks, (heads,), "[H]")
        checks.require_dtype("sinks", sinks, checks.FLOAT_DTYPES)


def check_inputs(
    tokens: int,
    kv_pages: jax.Array,
    page_table: np.ndarray,
    query_start: np.ndarray,
    kv_length: np.ndarray,
    window: int | None = None,
) -> None:
    """Check the values that tracing cannot see, on concrete arrays; `tokens` is T.

    Raises:
        ValueError: query_start does not ascend from 0 to at most T, a row has more queries than keys or keys than
            pages, a row that uses a page names none (0), or a page id is outside the cache. Pages that lie before the
            windows of all of a row's queries are not used.
    """
    page_table, query_start, kv_length = (np.asarray(array) for array in (page_table, query_start, kv_length))
    counts = np.diff(query_start)
    if query_start[0] != 0 or (counts < 0).any() or query_start[-1] > tokens:
        raise ValueError(f"query_start must ascend from 0 to at most {tokens}, got {query_start.tolist()}")
    size = kv_pages.shape[4]
    if (page_table < 0).any() or (page_table >= kv_pages.shape[1]).any():
        raise ValueError(f"page_table entries must be between 0 and {kv_pages.shape[1] - 1}")
    for row, (count, length) in enumerate(zip(counts, kv_length, strict=True)):
        if count > length:
            raise ValueError(f"row {row} has {count} queries but only {length} keys")
        if length > page_table.shape[1] * size:
            raise ValueError(f"row {row} has {length} keys, more than {page_table.shape[1]} pages of {size} hold")
        first = 0 if window is None else max(0, length - count - window + 1) // size
        if count and (page_table[row, first : -(-length // size)] == 0).any():
            raise ValueError(f"row {row} uses the null page")
