"""sparse_paged_attention: attention of a step's tokens to chosen positions of their rows, over a paged cache of latents."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels import checks
from pallas_kernels.cached_vectors import require_vectors
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.registry import Target, choose
from pallas_kernels.sparse_paged_attention.implementations import IMPLEMENTATIONS
from pallas_kernels.sparse_paged_attention.problem import SparseProblem


def sparse_paged_attention(
    q: jax.Array,
    positions: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    query_start: jax.Array,
    kv_length: jax.Array,
    *,
    layer: int,
    options: AttentionOptions,
    kv_scales: jax.Array | None = None,
    implementation: str | None = None,
    target: Target | None = None,
) -> jax.Array:
    """Attend from every token to the keys at its own positions[T, N] alone (DeepSeek-AI 2025, DSA).

    What `ragged_paged_attention` computes with latents if a token's positions are all that it sees. A key is the first D numbers
    of the D' that are cached of a position, its value the first `options.value_dim` of them: what is behind is not multiplied by.
    Softmax is computed in float32.

    Args:
        q: [T, H, D] bf16, f16 or f32, rotated already.
        positions: int32 [T, N], different ones of the token's row, in any order, each below its kv_length; behind them -1.
        kv_pages: [L, P, 1, 1, S, D'] with D' >= D, as in `ragged_paged_attention`; vectors that no token attends to may hold
            anything, NaN included.
        page_table, query_start, kv_length: int32 [R, M], [R + 1], [R]; rows as in `ragged_paged_attention`.
        layer: static index into L.
        options: `scale` and `value_dim`; static.
        kv_scales: of a cache in f8 or int8, as in `ragged_paged_attention`.
        implementation: a name from `implementations.py`, or None to pick by target, shapes and dtypes.
        target: the device that the program is for; the default device unless given.

    Returns:
        [T, H, options.value_dim] in q's dtype; 0 for tokens without positions; of those at or after query_start[R] any number.

    Raises:
        ValueError: a shape, a static argument, an option or the implementation's name is wrong, or that implementation cannot do
            this.
        TypeError: a dtype is not supported.
    """
    require_vectors(kv_pages, kv_scales, layer)
    checks.require_page_rows(page_table, query_start, kv_length)
    checks.require_shape("q", q, (None, None, None), "[T, H, D]")
    checks.require_dtype("q", q, checks.FLOAT_DTYPES)
    tokens, heads, dim = q.shape
    if 0 in q.shape or dim > kv_pages.shape[5]:
        raise ValueError(f"q must have tokens, heads and at most {kv_pages.shape[5]} numbers of each, got {list(q.shape)}")
    checks.require_shape("positions", positions, (tokens, None), "[T, N]")
    checks.require_dtype("positions", positions, (jnp.int32,))
    if options.asked != ("value_dim",) or not 1 <= (options.value_dim or 0) <= dim:
        raise ValueError(f"options must be a scale and a value_dim from 1 to {dim}, got {options}")
    rows, pages = page_table.shape
    problem = SparseProblem(
        tokens, rows, pages, positions.shape[1], heads, dim, kv_pages.shape[4], q.dtype, kv_pages.dtype, options
    )
    attend = choose("sparse_paged_attention", IMPLEMENTATIONS, implementation, target, problem)
    return attend(q, positions, kv_pages, page_table, query_start, kv_length, layer=layer, options=options, kv_scales=kv_scales)
