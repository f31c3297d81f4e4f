"""The parts of groups that latent attention cut, put together in Mosaic GPU: a thread block takes 64 rows and some columns."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.ragged_paged_attention.mosaic_gpu_latent_kernel import (
    MASKED,
    Attended,
    columns_of,
    store_tokens,
)
from pallas_kernels.ragged_paged_attention.mosaic_gpu_latent_plan import TILE_ROWS, LatentShape, Merges


def merge_parts(attended: Attended, merges: Merges, *, shape: LatentShape, interpret: Any) -> jax.Array:
    """Return `attended.out` with the tokens of cut groups in it, written in place."""
    width = columns_of(0, shape.value_dim)[0].size
    out = jax.new_ref(attended.out)
    run = plgpu.kernel(
        partial(_kernel, shape=shape),
        out_type=(),
        grid=(shape.merges, shape.value_dim // width, shape.tiles),
        grid_names=("merge", "columns", "tile"),
        scratch_types=[mosaic.tiled((TILE_ROWS, width), attended.out.dtype)],
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name="merge_latent",
        interpret=interpret,
    )
    run(attended.partials, attended.logarithms, *merges, out)
    merged: jax.Array = jax.freeze(out)
    return merged


class _Refs(NamedTuple):
    partials: Any
    logarithms: Any
    token: Any
    first: Any
    last: Any
    slot: Any
    parts: Any
    out: Any
    tile: Any


def _kernel(*arguments: Any, shape: LatentShape) -> None:
    refs, number, tile = _Refs(*arguments), lax.axis_index("merge"), lax.axis_index("tile")
    width = refs.tile.shape[1]
    columns = pl.ds(lax.axis_index("columns") * width, width)
    parts, slot = refs.parts[number], refs.slot[number]

    @pl.when(parts > 0)
    def _merge() -> None:
        def step(part: jax.Array, state: Any) -> Any:
            largest, total, values = state
            logarithm = plgpu.load(refs.logarithms.at[slot + part, tile], layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)
            added = plgpu.load(refs.partials.at[slot + part, tile, :, columns], layout=plgpu.Layout.WGMMA, optimized=False)
            top = jnp.maximum(largest, logarithm)
            fade, weight = jnp.exp2(largest - top), jnp.exp2(logarithm - top)
            over = partial(lax.broadcast_in_dim, shape=added.shape, broadcast_dimensions=[0])
            return top, total * fade + weight, values * over(fade) + added * over(weight)

        rows = plgpu.Layout.WGMMA.reduce(1)
        start = (
            plgpu.layout_cast(jnp.full((TILE_ROWS,), MASKED, jnp.float32), rows),
            plgpu.layout_cast(jnp.zeros((TILE_ROWS,), jnp.float32), rows),
            plgpu.layout_cast(jnp.zeros((TILE_ROWS, width), jnp.float32), plgpu.Layout.WGMMA),
        )
        _, total, values = lax.fori_loop(0, parts, step, start)
        refs.tile[...] = (values / lax.broadcast_in_dim(total, values.shape, [0])).astype(refs.tile.dtype)
        store_tokens(refs.tile, refs.out, columns, refs.token[number], (refs.first[number], refs.last[number]), shape)
