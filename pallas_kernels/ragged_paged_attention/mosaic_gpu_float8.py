"""Keys and values in float8 as operands of wgmma, in decode and prefill alike.

Numbers come by TMA as they are stored. A warpgroup widens a block of them into a tile of a 16-bit dtype, which is exact; no
instruction multiplies float8 with a wider type. Scales stay out of the tiles: those of keys multiply the logits, those of values
the weights.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.ragged_paged_attention.mosaic_gpu_softmax import BLOCK_KEYS

# Of widened values and of the weights that multiply them, whatever the queries are: a weight times a scale needs its range.
VALUE_DTYPE = jnp.bfloat16
WIDENED_COLUMNS = 64  # at once: few registers at a time


def numbers(slots: int, dim: int, dtype: Any) -> Any:
    """Describe the shared memory of `slots` blocks of stored keys or values, in tiles that TMA writes and `widen` reads."""
    width = next(width for width in (WIDENED_COLUMNS, 32, 16) if dim % width == 0)
    tiling = plgpu.TilingTransform((mosaic.ROW_TILE, width))  # type: ignore[abstract]
    # 16 columns are whole rows of memory banks as they are.
    swizzle = () if width == 16 else (plgpu.SwizzleTransform(width),)  # type: ignore[abstract]
    return plgpu.SMEM((slots, BLOCK_KEYS, dim), dtype, transforms=(tiling, *swizzle))


def load_scales(scales: Any, source: Any, slot: Any, first: int, barrier: Any) -> None:
    """Start to load the scales of a page: those of its keys or its values, by `source`.

    Args:
        scales: of the whole cache, [L * P * 2 * K, S].
        source: the place in it.
        slot: [BLOCK_KEYS] in shared memory.
        first: the page's first key in the slot.
        barrier: arrived at once.
    """
    plgpu.copy_gmem_to_smem(scales.at[source], slot.at[pl.ds(first, scales.shape[1])], barrier)


def widen(stored: Any, wide: Any) -> None:
    """Put a block of numbers, shared memory [BLOCK_KEYS, D], into one of a wider dtype, which every warp then sees."""
    dim = stored.shape[1]
    for first in range(0, dim, WIDENED_COLUMNS):
        part = pl.ds(first, min(WIDENED_COLUMNS, dim - first))
        loaded = plgpu.load(stored.at[:, part], layout=plgpu.Layout.WGMMA_UPCAST_2X, optimized=False)
        # float16 is the only type that the hardware converts float8 to.
        exact = loaded.astype(jnp.float16)
        wide[:, part] = exact if wide.dtype == jnp.float16 else exact.astype(jnp.float32).astype(wide.dtype)
    plgpu.commit_smem()
