"""kv_write in Mosaic GPU, for Hopper: one thread block a token, in place.

XLA's scatter into a donated cache is in place too, and as one fusion with what makes keys and values it needs not even
write them before. This kernel is for a cache in 8 bits, where XLA reads keys and values twice, once for their scales, and
scatters twice; and for steps that XLA would not fuse. Until both are measured on a GPU it runs where it is named.

Keys and values pass through shared memory: TMA brings a token's [K, D] and puts it where the slot says, a row of D a head.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.kv_write.quantize import SMALLEST_SCALE, largest_number

ROWS = 64  # of a tile whose rows a warpgroup reduces: KV heads are padded up to it


def kv_write(
    kv_pages: jax.Array,
    kv_scales: jax.Array | None,
    k: jax.Array,
    v: jax.Array,
    slots: jax.Array,
    *,
    layer: int,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """See api.py. With `interpret` the kernel is interpreted, on CPUs."""
    # The layer is an argument, so that all layers of a model share one trace and one kernel.
    written: tuple[jax.Array, jax.Array | None] = _write(
        kv_pages, kv_scales, k, v, slots, jnp.full(1, layer, jnp.int32), interpret=interpret
    )
    return written


@partial(jax.jit, static_argnames="interpret")
def _write(
    kv_pages: jax.Array,
    kv_scales: jax.Array | None,
    k: jax.Array,
    v: jax.Array,
    slots: jax.Array,
    layer: jax.Array,
    *,
    interpret: bool,
) -> tuple[jax.Array, jax.Array | None]:
    _, num_pages, _, kv_heads, size, dim = kv_pages.shape
    pages = jax.new_ref(kv_pages.reshape(-1, kv_heads, size, dim))
    options: dict[str, Any] = {
        "out_type": (),
        "grid": (slots.shape[0],),
        "grid_names": ("token",),
        "interpret": mosaic.interpreter() if interpret else None,
    }
    if kv_scales is None:
        copy = plgpu.kernel(
            partial(_copy, num_pages=num_pages),
            # Buffers of their own: TMA wants each to begin at a multiple of 128 bytes.
            scratch_types=[*[plgpu.SMEM((kv_heads, dim), k.dtype)] * 2, plgpu.Barrier(num_arrivals=2)],
            kernel_name="kv_write",
            **options,
        )
        copy(k, v, slots, layer, pages)
        return jax.freeze(pages).reshape(kv_pages.shape), None
    scales = jax.new_ref(kv_scales.reshape(-1, kv_heads, size))
    quantize = plgpu.kernel(
        partial(_quantize, num_pages=num_pages),
        scratch_types=[
            plgpu.SMEM((2, ROWS, dim), k.dtype),
            plgpu.SMEM((2, ROWS, dim), kv_pages.dtype),
            plgpu.SMEM((2, ROWS), jnp.float32),
            plgpu.Barrier(num_arrivals=2),
        ],
        kernel_name="kv_write_quantized",
        **options,
    )
    quantize(k, v, slots, layer, pages, scales)
    return jax.freeze(pages).reshape(kv_pages.shape), jax.freeze(scales).reshape(kv_scales.shape)


def _place(slots: Any, layer: Any, pages: Any, num_pages: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Where the block's token goes: its slot, its page's keys in `pages` [L * P * 2, K, S, ...], the offset in it."""
    size = pages.shape[2]
    slot = slots[lax.axis_index("token")]
    return slot, (layer[0] * num_pages + slot // size) * 2, slot % size


def _copy(k: Any, v: Any, slots: Any, layer: Any, pages: Any, keys: Any, values: Any, barrier: Any, *, num_pages: int) -> None:
    slot, page, offset = _place(slots, layer, pages, num_pages)

    @pl.when(slot >= pages.shape[2])
    def _write_token() -> None:
        for new, buffer in ((k, keys), (v, values)):
            plgpu.copy_gmem_to_smem(new.at[lax.axis_index("token")], buffer, barrier)
        plgpu.barrier_wait(barrier)
        for half, buffer in enumerate((keys, values)):
            plgpu.copy_smem_to_gmem(buffer, pages.at[page + half, :, offset])
        plgpu.wait_smem_to_gmem(0)


def _quantize(
    k: Any,
    v: Any,
    slots: Any,
    layer: Any,
    pages: Any,
    scales: Any,
    buffer: Any,
    numbers: Any,
    row_scales: Any,
    barrier: Any,
    *,
    num_pages: int,
) -> None:
    heads = k.shape[1]
    slot, page, offset = _place(slots, layer, pages, num_pages)

    @pl.when(slot >= pages.shape[2])
    def _write_token() -> None:
        for half, new in enumerate((k, v)):
            plgpu.copy_gmem_to_smem(new.at[lax.axis_index("token")], buffer.at[half, pl.ds(0, heads)], barrier)
        plgpu.barrier_wait(barrier)
        for half in range(2):
            vectors = plgpu.load(buffer.at[half], layout=plgpu.Layout.WGMMA, optimized=False).astype(jnp.float32)
            scale = jnp.max(jnp.abs(vectors), axis=1) / largest_number(numbers.dtype)
            scale = jnp.maximum(scale, SMALLEST_SCALE).astype(scales.dtype).astype(jnp.float32)
            scaled = vectors / lax.broadcast_in_dim(scale, vectors.shape, [0])
            if numbers.dtype == jnp.int8:
                scaled = lax.round(scaled, lax.RoundingMethod.TO_NEAREST_EVEN)
            numbers[half] = scaled.astype(numbers.dtype)
            row_scales[half] = scale
        plgpu.commit_smem()
        for half in range(2):
            plgpu.copy_smem_to_gmem(numbers.at[half, pl.ds(0, heads)], pages.at[page + half, :, offset])
            for head in range(heads):
                scales[page + half, head, offset] = row_scales[half, head].astype(scales.dtype)
        plgpu.wait_smem_to_gmem(0)
