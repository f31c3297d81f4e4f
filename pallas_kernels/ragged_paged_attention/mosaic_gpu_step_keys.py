"""Keys and values of the step's own tokens in the decode kernel, which has not found them in the cache but puts them there.

Queries, keys and values come as one array, not rotated yet. Who begins with a piece of a segment rotates its queries on their way
to shared memory. Pages are attended to up to the first key of this step's tokens; who has the last piece of a segment rotates
the keys of the step that its query sees, one after the other, and adds each to the softmax as a block of a single key: in
registers, beside the loop over pages. It writes the token's own key and value to their page. So each is written once, and what
is written is not read in the same launch: where a row has several tokens, each rotates the keys of those before it again, and no
row's pages may be those that another row of the step writes.
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
TMA_ALIGNMENT = 64  # numbers of 16 bits that are 128 bytes: where in shared memory what TMA stores may begin


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
        first: int32 [T], the first token of each one's row.
    """

    packed: Any
    cos: Any
    sin: Any
    slots: Any
    first: Any


def written_rows(workers: int, dim: int, dtype: Any) -> Any:
    """Describe the shared memory that a token's key and value leave by, of each worker."""
    return plgpu.SMEM((workers, 2, -(-dim // TMA_ALIGNMENT) * TMA_ALIGNMENT), dtype)


def load_queries(tile: Any, keys: StepKeys, token: jax.Array, head: jax.Array, rows: int, shape: StepShape) -> None:
    """Put `rows` heads of a token, from query head `head` on, into a tile of shared memory [64, D], rotated.

    Behind the heads of a KV head are those of the next, which nobody looks at. They come through registers: a tile's first head
    is none that TMA could begin with.
    """
    size, layout = mosaic.ROW_TILE, _layout(math.gcd(shape.half, shape.dim))
    for first in range(0, rows, size):
        heads, into = keys.packed.at[token, pl.ds(head + first, size)], tile.at[pl.ds(first, size)]
        for columns in shape.pairs:
            numbers = [_load(heads.at[:, part], layout).astype(jnp.float32) for part in columns]
            turn = (_load(table.at[token, columns[0]], layout.reduce(0)) for table in (keys.cos, keys.sin))
            cos, sin = (lax.broadcast_in_dim(each, numbers[0].shape, [1]) for each in turn)
            for part, rotated in zip(columns, _rotated(numbers[0], numbers[1], cos, sin), strict=True):
                into[:, part] = rotated.astype(tile.dtype)
        if shape.rest is not None:
            into[:, shape.rest] = _load(heads.at[:, shape.rest], layout)
    plgpu.commit_smem()


def absorb(
    tile: Any, keys: StepKeys, token: jax.Array, head: jax.Array, count: jax.Array, rows: Any, shape: StepShape, state: Any
) -> Any:
    """Attend from a token's queries to the last `count` keys of the step up to its own, if any; and put its own into `rows`.

    Args:
        tile: the queries [64, D], rotated.
        keys: of the step.
        token: whose.
        head: the KV head.
        count: how many keys.
        rows: [2, D or more] of shared memory for key and value, to be committed.
        shape: the static arguments.
        state: sum of weighted values f32 [64, D], and the Sums of its rows.
    """
    place = shape.heads * shape.kv_heads + head

    def step(number: jax.Array, state: tuple[jax.Array, Sums]) -> tuple[jax.Array, Sums]:
        total, sums = state
        other = token - count + 1 + number
        own = other == token
        key, value = keys.packed.at[other, place], keys.packed.at[other, place + shape.kv_heads]
        pl.when(own)(lambda: plgpu.wait_smem_to_gmem(0))  # for the piece before
        scores: list[jax.Array] = []

        def multiply(columns: Any, part: jax.Array) -> None:
            @pl.when(own)
            def _write() -> None:
                rows[0, columns] = part

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
        largest = jnp.maximum(sums.largest, logits)
        fade, weight = jnp.exp2(sums.largest - largest), jnp.exp2(logits - largest)
        values = _row(value)

        @pl.when(own)
        def _write_values() -> None:
            rows[1, pl.ds(0, shape.dim)] = values

        spread = lax.broadcast_in_dim(values.astype(jnp.float32), total.shape, [1])
        total = total * softmax.over_columns(fade, total) + softmax.over_columns(weight, total) * spread
        return total, Sums(largest, sums.total * fade + weight)

    return lax.fori_loop(0, count, step, state)


def write(rows: Any, pages: Any, first: jax.Array, kv_heads: int, slot: jax.Array, wanted: jax.Array) -> None:
    """Start to write a token's key and value to their page, unless that is the null page.

    Args:
        rows: what `absorb` put there, committed.
        pages: [L * P * 2 * K, S, D].
        first: where pages have the layer's null page's keys of the KV head.
        kv_heads: K.
        slot: the token's.
        wanted: whether to.
    """
    _, size, dim = pages.shape
    page, offset = lax.div(slot, jnp.int32(size)), lax.rem(slot, jnp.int32(size))

    @pl.when(wanted & (page > 0))
    def _copy() -> None:
        for half in range(2):
            into = pages.at[first + (page * 2 + half) * kv_heads, offset]
            plgpu.copy_smem_to_gmem(rows.at[half, pl.ds(0, dim)], into)


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
