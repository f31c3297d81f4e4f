"""ragged_paged_attention in Triton through jax-triton, for GPUs before Hopper (A100): decode. Imported only where it is chosen.

It was compiled for an A100 on a machine without one, and Triton's interpreter passed the parity cases with it in float16, with
numpy arrays in place of jax-triton's call. It has never run on a GPU, and no test runs it: run
`python -m jaxserve.verify kernels --device gpu` on an A100 before you rely on it.

A program takes one query and KV head and goes through all keys of the query's row, so few rows with long contexts leave
most of a GPU idle. Every token is a query of its own: right for any batch, and slow for prompts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax_triton
import numpy as np
import triton
import triton.language as tl

BLOCK_KEYS = 64
ROWS = 16  # the fewest rows of a matrix product: the query heads of a KV head are padded up to it
CAPABILITY = 80  # code for 8.0 runs on every 8.x
LOWEST = float(np.finfo(np.float32).min)  # unlike -inf it can be subtracted from itself


def ragged_paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    query_start: jax.Array,
    kv_length: jax.Array,
    *,
    layer: int,
    scale: float,
    kv_scales: jax.Array | None,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
) -> jax.Array:
    """See api.py."""
    assert kv_scales is None, "triton_support lets no quantized cache through"
    tokens, heads, dim = q.shape
    _, num_pages, _, kv_heads, page_size, _ = kv_pages.shape
    token = jnp.arange(tokens, dtype=jnp.int32)
    row = jnp.sum((query_start[None, 1:] <= token[:, None]).astype(jnp.int32), axis=1)
    row = jnp.minimum(row, kv_length.shape[0] - 1)
    seen = jnp.where(token < query_start[-1], token + 1 + kv_length[row] - query_start[row + 1], 0)
    sink = jnp.full(heads, LOWEST, jnp.float32) if sinks is None else sinks.astype(jnp.float32)
    attended: jax.Array = jax_triton.triton_call(
        q,
        kv_pages,
        page_table,
        row,
        seen,
        jnp.full(1, layer, jnp.int32),  # an array, so that all layers of a model share one kernel
        sink,
        kernel=_attend,
        out_type=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid=(tokens, kv_heads),
        compute_capability=CAPABILITY,
        pages_per_row=page_table.shape[1],
        num_pages=num_pages,
        kv_heads=kv_heads,
        group=heads // kv_heads,
        group_rows=max(ROWS, triton.next_power_of_2(heads // kv_heads)),
        page_size=page_size,
        dim=dim,
        dim_columns=triton.next_power_of_2(dim),
        scale=scale,
        window=0 if window is None else window,
        soft_cap=0.0 if soft_cap is None else soft_cap,
        block_keys=BLOCK_KEYS,
    )
    return attended


@triton.jit  # type: ignore[untyped-decorator]
def _attend(
    q: tl.tensor,
    kv_pages: tl.tensor,
    page_table: tl.tensor,
    row: tl.tensor,
    seen: tl.tensor,
    layer: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    pages_per_row: tl.constexpr,
    num_pages: tl.constexpr,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    group_rows: tl.constexpr,
    page_size: tl.constexpr,
    dim: tl.constexpr,
    dim_columns: tl.constexpr,
    scale: tl.constexpr,
    window: tl.constexpr,
    soft_cap: tl.constexpr,
    block_keys: tl.constexpr,
) -> None:
    """Attend from the query heads of one KV head of one token; `window` and `soft_cap` are 0 for none."""
    token = tl.program_id(0)
    kv_head = tl.program_id(1)
    length = tl.load(seen + token)
    table = page_table + tl.load(row + token) * pages_per_row
    first_page = tl.load(layer).to(tl.int64) * num_pages
    head = tl.arange(0, group_rows)
    column = tl.arange(0, dim_columns)
    heads_here = (head < group)[:, None] & (column < dim)[None, :]
    query = ((token * kv_heads + kv_head) * group + head)[:, None] * dim + column[None, :]
    queries = tl.load(q + query, mask=heads_here, other=0.0)
    largest = tl.load(sinks + kv_head * group + head, mask=head < group, other=0.0)
    total = tl.full([group_rows], 1.0, tl.float32)  # of the sink; where there is none, the first key makes it 0
    values = tl.zeros([group_rows, dim_columns], tl.float32)
    start = length - length
    if window > 0:
        start = tl.maximum(length - window, 0)
    for begin in range(start, length, block_keys):
        key = begin + tl.arange(0, block_keys)
        live = key < length
        page = tl.load(table + key // page_size, mask=live, other=0)
        place = (((first_page + page) * 2) * kv_heads + kv_head) * page_size + key % page_size
        entry = place[:, None] * dim + column[None, :]
        wanted = live[:, None] & (column < dim)[None, :]
        k = tl.load(kv_pages + entry, mask=wanted, other=0.0)
        v = tl.load(kv_pages + entry + kv_heads * page_size * dim, mask=wanted, other=0.0)
        scores = tl.dot(queries, tl.trans(k)) * scale
        if soft_cap > 0.0:
            scores = soft_cap * (2.0 * tl.sigmoid(2.0 * scores / soft_cap) - 1.0)  # tanh
        scores = tl.where(live[None, :], scores, -3.0e38)
        highest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp(scores - highest[:, None])
        fade = tl.exp(largest - highest)
        total = total * fade + tl.sum(weights, axis=1)
        values = values * fade[:, None] + tl.dot(weights.to(v.dtype), v)
        largest = highest
    tl.store(out + query, (values / total[:, None]).to(out.dtype.element_ty), mask=heads_here)
