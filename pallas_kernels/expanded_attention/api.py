"""expanded_attention: attention of many tokens a row over a paged cache of latents, with keys and values made for them."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import checks
from pallas_kernels.cached_vectors import require_vectors
from pallas_kernels.expanded_attention.workspace import Heads, Source, filled, workspace
from pallas_kernels.ragged_paged_attention import AttentionOptions, ragged_paged_attention
from pallas_kernels.ragged_paged_attention.query_tiles import Rows
from pallas_kernels.registry import Target


def expanded_attention(
    q: jax.Array,
    key_up: jax.Array,
    value_up: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    query_start: jax.Array,
    kv_length: jax.Array,
    *,
    layer: int,
    options: AttentionOptions,
    num_pages: int,
    heads_at_once: int,
    kv_scales: jax.Array | None = None,
    implementation: str | None = None,
    target: Target | None = None,
) -> jax.Array:
    """Attend from every token to keys and values that are made of its row's cached latents (DeepSeek-AI 2024, not absorbed).

    What `ragged_paged_attention` over latents computes between a head's two projections, up to rounding: there they are applied
    to queries and to what these attend to, here to every latent of the rows, once for all their tokens. Keys and values of some
    heads after the other are written to pages of a workspace, which `ragged_paged_attention` then reads as any other cache.

    Args:
        q: [T, H, N + X] bf16, f16 or f32, of which the last X are rotated already.
        key_up, value_up: [H, N, C] and [H, V, C]: from a latent to each head's key, but for its rotated numbers, and value.
        kv_pages: [L, P, 1, 1, S, D'], with scales in `kv_scales` if in f8 or int8, as in `ragged_paged_attention`: of each
            position the latent in the first C numbers, behind it the X of a key that all heads share, and then what is not read.
        page_table, query_start, kv_length: int32 [R, M], [R + 1], [R]; rows as in `ragged_paged_attention`.
        layer: static index into L.
        options: as of `ragged_paged_attention` over latents; `value_dim` is C.
        num_pages: of the workspace. Rows with tokens must have no more together, each rounded up: else they attend to anything.
        heads_at_once: whose keys and values are in it at once; divides H.
        implementation, target: of `ragged_paged_attention`.

    Returns:
        [T, H, V] in q's dtype; 0 for padding tokens, those at or after query_start[R].

    Raises:
        ValueError: a shape, a static argument or the implementation's name is wrong, or that implementation cannot do this.
        TypeError: a dtype is not supported.
    """
    require_vectors(kv_pages, kv_scales, layer)
    checks.require_page_rows(page_table, query_start, kv_length)
    _check_heads(q, key_up, value_up, kv_pages, options)
    if num_pages < 1 or heads_at_once < 1 or q.shape[1] % heads_at_once:
        raise ValueError(
            f"num_pages must be at least 1, and heads_at_once divide the {q.shape[1]} heads, got {num_pages} and {heads_at_once}"
        )
    tokens, heads, width = q.shape
    groups, values = heads // heads_at_once, value_up.shape[1]
    rows = Rows(page_table, query_start, kv_length)
    source = Source.of(kv_pages, kv_scales, rows, layer)
    work = workspace(num_pages, heads_at_once, kv_pages.shape[4], width, values, q.dtype)
    table, dim = source.rows.table(page_table.shape[1]), work.shape[5]
    made_options = replace(options, value_dim=None)

    def some_heads(work: jax.Array, part: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, key_up, value_up = part
        work = filled(work, source, Heads(key_up, value_up, width - key_up.shape[1]))
        attended = ragged_paged_attention(
            jnp.pad(q, ((0, 0), (0, 0), (0, dim - width))),
            work,
            table,
            query_start,
            kv_length,
            layer=0,
            options=made_options,
            implementation=implementation,
            target=target,
        )
        return work, attended[..., :values]

    parts = (
        q.reshape(tokens, groups, heads_at_once, width).swapaxes(0, 1),
        *(matrix.reshape(groups, heads_at_once, *matrix.shape[1:]) for matrix in (key_up, value_up)),
    )
    attended = lax.scan(some_heads, work, parts)[1]
    return attended.swapaxes(0, 1).reshape(tokens, heads, values)


def _check_heads(q: jax.Array, key_up: jax.Array, value_up: jax.Array, kv_pages: jax.Array, options: AttentionOptions) -> None:
    checks.require_shape("q", q, (None, None, None), "[T, H, N + X]")
    checks.require_dtype("q", q, checks.FLOAT_DTYPES)
    heads, width = q.shape[1:]
    latent = options.value_dim
    if 0 in q.shape or latent is None:
        raise ValueError(f"q must have tokens and heads, and options a value_dim, got {list(q.shape)} and {options}")
    for name, matrix in (("key_up", key_up), ("value_up", value_up)):
        checks.require_shape(name, matrix, (heads, None, latent), "[H, N or V, C]")
    rotated = width - key_up.shape[1]
    if rotated < 0 or latent + rotated > kv_pages.shape[5]:
        raise ValueError(
            f"a key has {width} numbers, {key_up.shape[1]} of them of a latent of {latent}: the others must be behind it among"
            f" the {kv_pages.shape[5]} that are cached"
        )
