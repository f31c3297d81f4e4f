"""rotate_and_write in Mosaic GPU, for Hopper: one thread block a token, in place.

In XLA it is two kernels, since a scatter writes nothing beside its own operand. Both are so short that what they cost is
their start and one trip to memory, which this one pays once.

Queries, keys and values are taken as one array, the product that they are slices of: XLA finds that putting slices together
again is no work. TMA brings the first halves of a token's queries and keys to one place and the second halves to another, so
that a thread finds a pair in the same place of both.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.rotate_and_write.mosaic_gpu_support import VECTOR, loaded_heads
from pallas_kernels.rotate_and_write.problem import RotateProblem
from pallas_kernels.rotate_and_write.rotation import Rotation, packed_heads

WARPS, LANES = 4, 32  # of a thread block, and of a warp


def rotate_and_write(
    kv_pages: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    rotation: Rotation,
    slots: jax.Array,
    *,
    layer: int,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See api.py. With `interpret` the kernel is interpreted, on CPUs."""
    packed = packed_heads(q, k, v)
    # The layer is an argument, so that all layers of a model share one trace and one kernel.
    done: tuple[jax.Array, jax.Array] = _run(
        kv_pages, packed, rotation, slots, jnp.full(1, layer, jnp.int32), interpret=interpret
    )
    return done


@partial(jax.jit, static_argnames="interpret")
def _run(
    kv_pages: jax.Array, packed: jax.Array, rotation: Rotation, slots: jax.Array, layer: jax.Array, *, interpret: bool
) -> tuple[jax.Array, jax.Array]:
    _, num_pages, _, kv_heads, size, dim = kv_pages.shape
    tokens, heads, half = packed.shape[0], packed.shape[1] - 2 * kv_heads, rotation.cos.shape[1]
    loaded = loaded_heads(RotateProblem(heads, kv_heads, dim, 2 * half, packed.dtype, kv_pages.dtype))
    tile = _tile_rows(half)
    pages = jax.new_ref(kv_pages.reshape(-1, kv_heads, size, dim))
    run = plgpu.kernel(
        partial(_kernel, num_pages=num_pages, loaded=loaded),
        out_type=jax.ShapeDtypeStruct((tokens, heads, dim), packed.dtype),
        grid=(tokens,),
        grid_names=("token",),
        scratch_types=[
            plgpu.SMEM((2, -(-loaded // tile) * tile, half), packed.dtype),
            plgpu.SMEM((loaded, dim - 2 * half), packed.dtype) if dim > 2 * half else None,
            plgpu.SMEM((kv_heads, dim), packed.dtype),
            plgpu.Barrier(num_arrivals=4 if dim > 2 * half else 3),
        ],
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        kernel_name="rotate_and_write",
        interpret=mosaic.interpreter() if interpret else None,
    )
    q = run(packed, rotation.cos, rotation.sin, slots, layer, pages)
    return q, jax.freeze(pages).reshape(kv_pages.shape)


class _Refs(NamedTuple):
    """Memory of the kernel, in the order of its arguments: inputs, the cache, outputs, scratch."""

    packed: Any
    cos: Any
    sin: Any
    slots: Any
    layer: Any
    pages: Any
    q: Any
    halves: Any
    rest: Any
    values: Any
    loaded: Any


def _kernel(*arguments: Any, num_pages: int, loaded: int) -> None:
    refs = _Refs(*arguments)
    token, (heads, dim), half = lax.axis_index("token"), refs.q.shape[1:], refs.cos.shape[1]
    kv_heads, size = refs.pages.shape[1:3]
    queries, keys = pl.ds(0, heads), pl.ds(heads, kv_heads)
    parts = [(refs.halves.at[i], pl.ds(i * half, half)) for i in range(2)]
    if refs.rest is not None:
        parts.append((refs.rest, pl.ds(2 * half, dim - 2 * half)))
    for buffer, columns in parts:
        plgpu.copy_gmem_to_smem(refs.packed.at[token, pl.ds(0, loaded), columns], buffer.at[pl.ds(0, loaded)], refs.loaded)
    plgpu.copy_gmem_to_smem(refs.packed.at[token, pl.ds(heads + kv_heads, kv_heads)], refs.values, refs.loaded)
    slot = refs.slots[token]
    page, offset = (refs.layer[0] * num_pages + slot // size) * 2, slot % size
    _turn(refs, token, half)
    for buffer, columns in parts:
        plgpu.copy_smem_to_gmem(buffer.at[queries], refs.q.at[token, :, columns])

    @pl.when(slot >= size)
    def _write() -> None:
        for buffer, columns in parts:
            plgpu.copy_smem_to_gmem(buffer.at[keys], refs.pages.at[page, :, offset, columns])
        plgpu.copy_smem_to_gmem(refs.values, refs.pages.at[page + 1, :, offset])

    plgpu.wait_smem_to_gmem(0)


def _turn(refs: _Refs, token: jax.Array, half: int) -> None:
    """Wait for the heads of a token, and rotate them where they lie. Rows behind the last may hold anything."""
    layout, rows = _layout(half), _tile_rows(half)
    load = partial(plgpu.load, optimized=False)
    cos, sin = (
        plgpu.layout_cast(lax.broadcast_in_dim(load(table.at[token], layout=layout.reduce(0)), (rows, half), [1]), layout)
        for table in (refs.cos, refs.sin)
    )
    plgpu.barrier_wait(refs.loaded)
    for start in range(0, refs.halves.shape[1], rows):
        tiles = [refs.halves.at[i, pl.ds(start, rows)] for i in range(2)]
        first, second = (load(tile, layout=layout).astype(jnp.float32) for tile in tiles)
        for tile, rotated in zip(tiles, (first * cos - second * sin, second * cos + first * sin), strict=True):
            tile[...] = rotated.astype(refs.halves.dtype)
    plgpu.commit_smem()


def _column_lanes(half: int) -> int:
    """Lanes of a warp that are side by side on a row of `half` columns: the largest power of 2 that divides it, up to 16."""
    return min(half // VECTOR & -(half // VECTOR), 16)


def _tile_rows(half: int) -> int:
    """Rows of `_layout`."""
    return WARPS * LANES // _column_lanes(half)


def _layout(half: int) -> Any:
    """How [rows, half] lies in registers: a thread has 8 columns of a row, 16 bytes of bf16, so that loads are wide."""
    lanes = _column_lanes(half)
    rows, columns = LANES // lanes, VECTOR * lanes
    tiling = plgpu.Tiling(((WARPS * rows, columns), (rows, columns), (VECTOR,)))
    return plgpu.Layout.TILED(tiling, warp_dims=(-5,), lane_dims=(-3, -2), vector_dim=-1)
