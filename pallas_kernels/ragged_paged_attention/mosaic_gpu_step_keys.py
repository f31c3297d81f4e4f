"""Keys and values of the step's own tokens in the decode kernel, which has not found them in the cache but puts them there.

Queries, keys and values come as one array, not rotated yet. Who begins with a piece of a segment rotates its queries on their way
to shared memory. Pages are attended to up to the first key of this step's tokens; who has the last piece of a segment rotates
the keys of the step that its queries see, one after the other, and adds each to the softmax as a block of a single key: in
registers, beside the loop over pages. It writes keys and values of the tile's own tokens to their pages. So each is written
once, and what is written is not read in the same launch: where a row has several tiles, each rotates the keys of those before it
again, and no row's pages may be those that another row of the step writes.

What is written goes from registers to the page: a warpgroup has all of a key, and waits for nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.ragged_paged_attention import mosaic_gpu_softmax as softmax
from pallas_kernels.ragged_paged_attention.mosaic_gpu_softmax import Sums
from pallas_kernels.ragged_paged_attention.options import AttentionOptions

ROTATED_COLUMNS = 64  # of each half at once: few registers at a time


@dataclass(frozen=True)
class StepShape:
    """Static arguments.

    Attributes:
        heads: G, query heads of a KV head.
        kv_heads: K.
        dim: D.
        half: of the rotated dimensions.
    """

    heads: int
    kv_heads: int
    dim: int
    half: int
    options: AttentionOptions

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """Columns that are rotated with each other, some at a time."""
        starts = range(0, self.half, ROTATED_COLUMNS)
        widths = [min(ROTATED_COLUMNS, self.half - start) for start in starts]
        return [(pl.ds(start, width), pl.ds(self.half + start, width)) for start, width in zip(starts, widths, strict=True)]

    @property
    def rest(self) -> Any:
        """Columns that stay as they are, or None."""
        return pl.ds(2 * self.half, self.dim - 2 * self.half) if self.dim > 2 * self.half else None


class StepKeys(NamedTuple):
    """The step's tokens: arrays here, references to memory in the kernel.

    Attributes:
        packed: [T, H + 2 K, D], queries, keys and values before the rotation.
        cos, sin: f32 [T, half].
        slots: int32 [T], page * S + offset of each; in the null page for a token that is not written.
        token: int32 [I], the first token of each tile that has queries.
        first: int32 [I], the first token of its row.
    """

    packed: Any
    cos: Any
    sin: Any
    slots: Any
    token: Any
    first: Any


class Tokens(NamedTuple):
    """Those of a tile, of the step's: `count` from `first` on."""

    first: jax.Array
    count: jax.Array


class Pages(NamedTuple):
    """Where a KV head's keys and values are written.

    Attributes:
        pages: [L * P * 2 * K, S, D].
        first: where pages have the layer's null page's keys of the KV head.
        kv_heads: K.
    """

    pages: Any
    first: jax.Array
    kv_heads: int

    def write(self, slot: jax.Array, half: int, columns: Any, numbers: jax.Array) -> None:
        """Write columns of the key of a slot that is not in the null page, or of its value if `half` is 1."""
        size = jnp.int32(self.pages.shape[1])
        place = self.first + (lax.div(slot, size) * 2 + half) * self.kv_heads
        self.pages.at[place, lax.rem(slot, size)][columns] = numbers


def load_queries(tile: Any, keys: StepKeys, tokens: Tokens, head: jax.Array, rows: tuple[int, int], shape: StepShape) -> None:
    """Put heads of tokens, from query head `head` on, into a tile of shared memory [64, D], rotated.

    `rows` are how many tokens at most, and how many heads of each, a multiple of 8. Behind the heads of a KV head are those of
    the next, which nobody looks at. They come through registers: a tile's first head is none that TMA could begin with.
    """
    queries, group = rows
    for query in range(queries):

        def load(query: int = query) -> None:
            for first in range(0, group, mosaic.ROW_TILE):
                into = tile.at[pl.ds(query * group + first, mosaic.ROW_TILE)]
                _load_heads(into, keys, tokens.first + query, head + first, shape)

        if query == 0:
            load()
        else:
            pl.when(query < tokens.count)(load)
    plgpu.commit_smem()


def _load_heads(into: Any, keys: StepKeys, token: jax.Array, head: jax.Array, shape: StepShape) -> None:
    """Put 8 heads of a token into 8 rows of a tile, rotated."""
    layout, heads = _layout(math.gcd(shape.half, shape.dim)), keys.packed.at[token, pl.ds(head, mosaic.ROW_TILE)]
    for columns in shape.pairs:
        numbers = [_load(heads.at[:, part], layout).astype(jnp.float32) for part in columns]
        turn = (_load(table.at[token, columns[0]], layout.reduce(0)) for table in (keys.cos, keys.sin))
        cos, sin = (lax.broadcast_in_dim(each, numbers[0].shape, [1]) for each in turn)
        for part, rotated in zip(columns, _rotated(numbers[0], numbers[1], cos, sin), strict=True):
            into[:, part] = rotated.astype(into.dtype)
    if shape.rest is not None:
        into[:, shape.rest] = _load(heads.at[:, shape.rest], layout)


def absorb(
    tile: Any,
    keys: StepKeys,
    tokens: Tokens,
    query: jax.Array | None,
    head: jax.Array,
    count: jax.Array,
    pages: Pages,
    shape: StepShape,
    state: Any,
) -> Any:
    """Attend from a tile's queries to the last `count` keys of the step up to its last one, if any; and write its own.

    Args:
        tile: the queries [64, D], rotated.
        keys: of the step.
        tokens: whose queries.
        query: int32 [64], which of them each row of the tile is of; None where there is one.
        head: the KV head.
        count: how many keys: the first query sees them or it does not, and all that it sees are among them.
        pages: where to.
        shape: the static arguments.
        state: sum of weighted values f32 [64, D], and the Sums of its rows.
    """
    place = shape.heads * shape.kv_heads + head

    def step(number: jax.Array, state: tuple[jax.Array, Sums]) -> tuple[jax.Array, Sums]:
        total, sums = state
        other = tokens.first + tokens.count - count + number
        slot = keys.slots[other]
        written = (other >= tokens.first) & (slot >= pages.pages.shape[1])
        key, value = keys.packed.at[other, place], keys.packed.at[other, place + shape.kv_heads]
        scores: list[jax.Array] = []

        def multiply(columns: Any, part: jax.Array) -> None:
            pl.when(written)(lambda: pages.write(slot, 0, columns, part))
            queries = plgpu.load(tile.at[:, columns], layout=plgpu.Layout.WGMMA).astype(jnp.float32)
            scores.append((queries * lax.broadcast_in_dim(part.astype(jnp.float32), queries.shape, [1])).sum(axis=1))

        for columns in shape.pairs:
            first, second = (_row(key.at[part]).astype(jnp.float32) for part in columns)
            cos, sin = (_row(table.at[other, columns[0]]) for table in (keys.cos, keys.sin))
            for part, rotated in zip(columns, _rotated(first, second, cos, sin), strict=True):
                multiply(part, rotated.astype(tile.dtype))
        if shape.rest is not None:
            multiply(shape.rest, _row(key.at[shape.rest]))
        logits = softmax.logits(sum(scores[1:], scores[0]), shape.options, None)
        if query is not None:
            logits = _masked(logits, tokens.first + query - other, shape.options.window)
        largest = jnp.maximum(sums.largest, logits)
        fade, weight = jnp.exp2(sums.largest - largest), jnp.exp2(logits - largest)
        values = _row(value)
        pl.when(written)(lambda: pages.write(slot, 1, pl.ds(0, shape.dim), values))
        spread = lax.broadcast_in_dim(values.astype(jnp.float32), total.shape, [1])
        total = total * softmax.over_columns(fade, total) + softmax.over_columns(weight, total) * spread
        return total, Sums(largest, sums.total * fade + weight)

    return lax.fori_loop(0, count, step, state)


def _masked(logits: jax.Array, behind: jax.Array, window: int | None) -> jax.Array:
    """Mask those of a key that is so many positions behind each row's query."""
    visible = behind >= 0
    if window is not None:
        visible &= behind < window
    return jnp.where(visible, logits, softmax.MASKED)


def _rotated(first: jax.Array, second: jax.Array, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, jax.Array]:
    return first * cos - second * sin, second * cos + first * sin


def _row(row: Any) -> jax.Array:
    """Load a vector so that every row of a tile can be multiplied by it."""
    return _load(row, plgpu.Layout.WGMMA.reduce(0))


def _load(source: Any, layout: Any) -> jax.Array:
    loaded: jax.Array = plgpu.load(source, layout=layout, optimized=False)
    return loaded


def _layout(columns: int) -> Any:
    """How 8 rows lie in the registers of a warpgroup, two in a warp; of a multiple of `columns`, itself a multiple of 16."""
    rows, lanes = 2, 16
    vector = math.gcd(columns // lanes, 4)
    tiling = plgpu.Tiling(((mosaic.ROW_TILE, lanes * vector), (rows, lanes * vector), (vector,)))
    return plgpu.Layout.TILED(tiling, warp_dims=(-5,), lane_dims=(-3, -2), vector_dim=-1)
