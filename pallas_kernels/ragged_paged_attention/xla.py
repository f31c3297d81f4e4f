"""ragged_paged_attention in plain XLA: online softmax over blocks of pages, with loops that run only as far as the batch needs.

Two parts, because their shapes differ: queries that are alone in their rows are computed together, a block of keys of
all of them at a time; longer rows are cut into blocks of queries and computed one after another. A part without work
runs no trip. With no more tokens than rows the first part does everything: it is what decode steps compile to.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.ragged_paged_attention.online_softmax import LOWEST, Softmax, absorb, normalize
from pallas_kernels.ragged_paged_attention.options import AttentionOptions

DECODE_KEYS = 128  # keys a trip of the decode loop: measured on CPU, flat between 64 and 256
CHUNK_KEYS = 128  # keys a trip of the chunk loop
CHUNK_QUERIES = 128  # queries a work item


class Rows(NamedTuple):
    """The rows of the batch: page_table [R, M], query_start [R + 1], kv_length [R]."""

    page_table: jax.Array
    query_start: jax.Array
    kv_length: jax.Array


class Problem(NamedTuple):
    """What both parts share.

    Attributes:
        pages: [L * P * 2 * K, S, D], the cache as a list of one head's halves of pages, so that one gather of whole
            entries yields [..., K, C, S, D] with no transpose. A cache in float8 as bytes (uint8): on CPU a gather of float8
            converts the whole cache to float16. A cache whose keys are its values has no second halves.
        scales: [L * P * 2 * K, S], likewise; None if the cache is not quantized.
        layer_start: where the layer begins in `pages`.
        page_entries: entries of `pages` to a page: 2 * K, or K.
        sink: the state before any key, [K, G].
    """

    pages: jax.Array
    scales: jax.Array | None
    layer_start: jax.Array
    page_entries: int
    kv_heads: int
    options: AttentionOptions
    sink: Softmax

    @property
    def page_size(self) -> int:
        """S."""
        return int(self.pages.shape[1])


class Item(NamedTuple):
    """A block of BQ queries of one row, as positions in the row: it starts `at`, and `first` to `last` count."""

    row: jax.Array
    at: jax.Array
    first: jax.Array
    last: jax.Array


def ragged_paged_attention(
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
) -> jax.Array:
    shape = (kv_pages.shape[3], q.shape[1] // kv_pages.shape[3])  # [K, G]
    sink = Softmax(
        largest=jnp.full(shape, LOWEST, jnp.float32) if sinks is None else sinks.astype(jnp.float32).reshape(shape),
        total=jnp.full(shape, 0.0 if sinks is None else 1.0, jnp.float32),
        values=jnp.zeros((*shape, options.value_dim or q.shape[2]), jnp.float32),
    )
    rows = Rows(page_table, query_start, kv_length)
    # The layer is an argument, so that all layers of a model share one trace.
    attended: jax.Array = _attend(q, (kv_pages, kv_scales), rows, jnp.int32(layer), sink, options=options)
    return attended


@partial(jax.jit, static_argnames=("options",))
def _attend(
    q: jax.Array,
    cache: tuple[jax.Array, jax.Array | None],
    rows: Rows,
    layer: jax.Array,
    sink: Softmax,
    *,
    options: AttentionOptions,
) -> jax.Array:
    kv_pages, kv_scales = cache
    _, num_pages, halves, kv_heads, size, dim = kv_pages.shape
    if kv_pages.dtype == jnp.float8_e4m3fn:
        kv_pages = lax.bitcast_convert_type(kv_pages, jnp.uint8)
    problem = Problem(
        pages=kv_pages.reshape(-1, size, dim),
        scales=None if kv_scales is None else kv_scales.reshape(-1, size),
        layer_start=layer * (num_pages * halves * kv_heads),
        page_entries=halves * kv_heads,
        kv_heads=kv_heads,
        options=options,
        sink=sink,
    )
    padding = max(_block_pages(DECODE_KEYS, size), _block_pages(CHUNK_KEYS, size))
    rows = rows._replace(page_table=jnp.pad(rows.page_table, ((0, 0), (0, padding))))
    tokens = q.shape[0]
    token = jnp.arange(tokens, dtype=jnp.int32)
    row = jnp.sum((rows.query_start[None, 1:] <= token[:, None]).astype(jnp.int32), axis=1)
    row = jnp.minimum(row, rows.kv_length.shape[0] - 1)
    real = token < rows.query_start[-1]
    if tokens <= rows.kv_length.shape[0]:
        seen = token + 1 + rows.kv_length[row] - rows.query_start[row + 1]
        return _together(problem, q, rows.page_table[row], jnp.where(real, seen, 0))
    single = rows.query_start[1:] - rows.query_start[:-1] == 1
    first = q[jnp.minimum(rows.query_start[:-1], tokens - 1)]
    attended = _together(problem, first, rows.page_table, jnp.where(single, rows.kv_length, 0))
    out = jnp.where((single[row] & real)[:, None, None], attended[row], jnp.zeros((), q.dtype))
    return _chunks(problem, rows, q, out)


def _together(problem: Problem, q: jax.Array, page_table: jax.Array, length: jax.Array) -> jax.Array:
    """Attend from one query a row, [R, H, D], to the first `length` [R] keys of each row; 0 where there are none."""
    rows, heads, dim = q.shape
    size, window = problem.page_size, problem.options.window
    block_pages = _block_pages(DECODE_KEYS, size)
    grouped = q.astype(jnp.float32).reshape(rows, problem.kv_heads, -1, dim)
    start = jnp.zeros_like(length) if window is None else jnp.maximum(length - window, 0)
    first_page = start // size  # [R]
    trips = jnp.max(-(-(length - first_page * size) // (block_pages * size)))

    def trip(carry: tuple[jax.Array, Softmax]) -> tuple[jax.Array, Softmax]:
        block, state = carry
        # Rows that ended before the longest one stay in the padding at the end of the table.
        page = jnp.minimum(first_page + block * block_pages, page_table.shape[1] - block_pages)
        ids = jax.vmap(lambda table, at: lax.dynamic_slice(table, (at,), (block_pages,)))(page_table, page)
        key = page[:, None] * size + jnp.arange(block_pages * size, dtype=jnp.int32)[None, :]  # [R, C * S]
        live = (key >= start[:, None]) & (key < length[:, None])
        k, v = _gather(problem, ids, live)
        scores = _scores(problem, "rkgd,rksd->rkgs", grouped, k)
        return block + 1, absorb(state, scores, live[:, None, None, :], v)

    state = Softmax(*(jnp.broadcast_to(part[None], (rows, *part.shape)) for part in problem.sink))
    _, state = lax.while_loop(lambda carry: carry[0] < trips, trip, (jnp.int32(0), state))
    return normalize(state).reshape(rows, heads, -1).astype(q.dtype)


def _chunks(problem: Problem, rows: Rows, q: jax.Array, out: jax.Array) -> jax.Array:
    """Attend for the rows with several queries, a block of queries of one row a trip, and write into `out`."""
    tokens, heads, dim = q.shape
    query_start, kv_heads = rows.query_start, problem.kv_heads
    queries = min(CHUNK_QUERIES, tokens)
    counts = query_start[1:] - query_start[:-1]
    blocks = jnp.where(counts > 1, -(-counts // queries), 0)
    ends = jnp.cumsum(blocks)

    def work(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        number, out = carry
        row = jnp.sum((ends <= number).astype(jnp.int32))
        first = query_start[row] + (number - ends[row] + blocks[row]) * queries
        last = jnp.minimum(first + queries, query_start[row + 1])
        at = jnp.minimum(first, tokens - queries)  # the slice may start early; tokens before `first` are not ours
        shift = rows.kv_length[row] - query_start[row + 1]  # from token to position
        block = lax.dynamic_slice_in_dim(q, at, queries).astype(jnp.float32)
        block = block.reshape(queries, kv_heads, -1, dim).transpose(1, 0, 2, 3)  # [K, BQ, G, D]
        state = _attend_chunk(problem, rows, block, Item(row, at + shift, first + shift, last + shift))
        attended = normalize(state).transpose(1, 0, 2, 3).reshape(queries, heads, -1).astype(q.dtype)
        token = at + jnp.arange(queries, dtype=jnp.int32)
        ours = ((token >= first) & (token < last))[:, None, None]
        old = lax.dynamic_slice_in_dim(out, at, queries)
        return number + 1, lax.dynamic_update_slice_in_dim(out, jnp.where(ours, attended, old), at, 0)

    return lax.while_loop(lambda carry: carry[0] < ends[-1], work, (jnp.int32(0), out))[1]


def _attend_chunk(problem: Problem, rows: Rows, q: jax.Array, item: Item) -> Softmax:
    """Attend from q [K, BQ, G, D] to the keys of the item's row; returns [K, BQ, G]."""
    size, window = problem.page_size, problem.options.window
    block_pages = _block_pages(CHUNK_KEYS, size)
    kv_heads, queries, group, dim = q.shape
    flat_q = q.reshape(kv_heads, queries * group, dim)
    position = item.at + jnp.arange(queries, dtype=jnp.int32)
    start = jnp.int32(0) if window is None else jnp.maximum(item.first - window + 1, 0)
    length = rows.kv_length[item.row]

    def trip(carry: tuple[jax.Array, Softmax]) -> tuple[jax.Array, Softmax]:
        page, state = carry
        ids = lax.dynamic_slice(rows.page_table, (item.row, page), (1, block_pages))[0]
        key = page * size + jnp.arange(block_pages * size, dtype=jnp.int32)  # [C * S]
        live = key < length
        k, v = _gather(problem, ids, live)
        scores = _scores(problem, "kqd,ksd->kqs", flat_q, k).reshape(kv_heads, queries, group, -1)
        seen = (key[None, :] <= position[:, None]) & live[None, :]  # [BQ, C * S]
        if window is not None:
            seen &= key[None, :] > position[:, None] - window
        return page + block_pages, absorb(state, scores, seen[None, :, None, :], v)

    state = Softmax(*(jnp.broadcast_to(x[:, None], (kv_heads, queries, *x.shape[1:])) for x in problem.sink))
    return lax.while_loop(lambda carry: carry[0] * size < item.last, trip, (start // size, state))[1]


def _gather(problem: Problem, ids: jax.Array, live: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Fetch keys and values of pages `ids` [..., C] as f32 [..., K, C * S, D]; values may be shorter.

    Values where `live` [..., C * S] is false become 0: a weight of 0 does not cancel a NaN.
    """
    head = jnp.arange(problem.kv_heads, dtype=jnp.int32)[:, None]
    entry = problem.layer_start + ids[..., None, :] * problem.page_entries
    entry = entry + jnp.expand_dims(head, tuple(range(ids.ndim - 1)))  # [..., K, C]

    def fetch(index: jax.Array) -> jax.Array:
        pages = problem.pages.at[index].get(mode="promise_in_bounds")  # [..., K, C, S, D]
        if pages.dtype == jnp.uint8:
            pages = lax.bitcast_convert_type(pages, jnp.float8_e4m3fn)
        pages = pages.astype(jnp.float32)
        if problem.scales is not None:
            pages *= problem.scales.at[index].get(mode="promise_in_bounds").astype(jnp.float32)[..., None]
        return pages.reshape(*pages.shape[:-3], -1, pages.shape[-1])

    keys, value_dim = fetch(entry), problem.options.value_dim
    values = fetch(entry + problem.kv_heads) if value_dim is None else keys[..., :value_dim]
    return keys, jnp.where(live[..., None, :, None], values, 0.0)


def _scores(problem: Problem, axes: str, q: jax.Array, k: jax.Array) -> jax.Array:
    cap = problem.options.soft_cap
    scores = jnp.einsum(axes, q, k, preferred_element_type=jnp.float32) * problem.options.scale
    return scores if cap is None else cap * jnp.tanh(scores / cap)


def _block_pages(keys: int, page_size: int) -> int:
    return max(1, keys // page_size)
