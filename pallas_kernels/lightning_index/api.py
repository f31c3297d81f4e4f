"""lightning_index: the cached positions that every token of a step attends to, the best ones by scores of small heads."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels import checks
from pallas_kernels.cached_vectors import require_vectors
from pallas_kernels.lightning_index.implementations import IMPLEMENTATIONS
from pallas_kernels.lightning_index.problem import IndexOptions, IndexProblem
from pallas_kernels.registry import Target, choose


def lightning_index(
    q: jax.Array,
    weights: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    query_start: jax.Array,
    kv_length: jax.Array,
    *,
    layer: int,
    options: IndexOptions,
    kv_scales: jax.Array | None = None,
    implementation: str | None = None,
    target: Target | None = None,
) -> jax.Array:
    """Choose for every token the positions of its own row, up to its own, whose scores are largest (DeepSeek-AI 2025, DSA).

        score of a key k = sum over heads i of weights_i max(q_i k, 0)

    The key is a part of the vector that is cached of a position. What all scores would be multiplied by changes nothing. Of equal
    scores the earlier position is chosen. Scores are computed in float32. (https://arxiv.org/abs/2512.02556, section 2.1)

    Axes: T tokens, I heads, N numbers of a key, R rows, M pages of a row; L, P, S, D of the cache. Rows are as in
    `ragged_paged_attention`.

    Args:
        q: [T, I, N] bf16, f16 or f32, rotated already.
        weights: f32 [T, I].
        kv_pages: [L, P, 1, 1, S, D] as in `ragged_paged_attention`; what no row uses may hold anything, NaN included.
        page_table, query_start, kv_length: int32 [R, M], [R + 1], [R].
        layer: static index into L.
        options: how many, and where the keys are; static.
        kv_scales: of a cache in f8 or int8, as in `ragged_paged_attention`.
        implementation: a name from `implementations.py`, or None to pick by target, shapes and dtypes.
        target: the device that the program is for; the default device unless given.

    Returns:
        int32 [T, min(top_k, M * S)]: different positions in any order, and behind them -1 where there are fewer. A token that
        sees no more positions than that has all of them; a padding token none.

    Raises:
        ValueError: a shape, a static argument or the implementation's name is wrong, or that implementation cannot do this.
        TypeError: a dtype is not supported.
    """
    require_vectors(kv_pages, kv_scales, layer)
    checks.require_page_rows(page_table, query_start, kv_length)
    checks.require_shape("q", q, (None, None, None), "[T, I, N]")
    checks.require_dtype("q", q, checks.FLOAT_DTYPES)
    tokens, heads, dim = q.shape
    if 0 in q.shape:
        raise ValueError(f"q must not be empty, got {list(q.shape)}")
    checks.require_shape("weights", weights, (tokens, heads), "[T, I]")
    checks.require_dtype("weights", weights, (jnp.float32,))
    if options.top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {options.top_k}")
    if not 0 <= options.first <= kv_pages.shape[5] - dim:
        raise ValueError(f"keys of {dim} numbers from {options.first} on are not in vectors of {kv_pages.shape[5]}")
    rows, pages = page_table.shape
    problem = IndexProblem(tokens, rows, pages, heads, dim, kv_pages.shape[4], q.dtype, kv_pages.dtype, options)
    index = choose("lightning_index", IMPLEMENTATIONS, implementation, target, problem)
    return index(q, weights, kv_pages, page_table, query_start, kv_length, layer=layer, options=options, kv_scales=kv_scales)
