"""Keys and values in 8 bits as operands of wgmma, in decode and prefill alike.

Numbers come by TMA as they are stored. A warpgroup widens a block of them into a tile of a 16-bit dtype, which is exact; no
instruction multiplies float8 or int8 with a wider type. Scales stay out of the tiles: those of keys multiply the logits, those
of values the weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
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
    # TMA by a descriptor, which looks after bounds, writes to multiples of 128 bytes only; a page's scales are as few as 16.
    plgpu.copy_gmem_to_smem(
        scales.at[source],
        slot.at[pl.ds(first, scales.shape[1])],
        barrier,
        oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS,
    )


class Seen(NamedTuple):
    """The rows [start, end) of a block of keys that count; what the others hold may be anything, NaN too."""

    start: jax.Array
    end: jax.Array

    def keep(self, rows: jax.Array, numbers: jax.Array) -> jax.Array:
        """Return the numbers of rows that count, and 0 for the others: NaN is not cancelled by a weight of 0."""
        return jnp.where((rows >= self.start) & (rows < self.end), numbers, jnp.zeros_like(numbers))


def read_scales(scales: Any, seen: Seen | None) -> jax.Array:
    """Read scales [BLOCK_KEYS] as f32, one for each column of a tile; with `seen` 0 for keys that do not count."""
    layout = plgpu.Layout.WGMMA.reduce(0)
    loaded: jax.Array = plgpu.load(scales, layout=layout, optimized=False).astype(jnp.float32)
    return loaded if seen is None else seen.keep(plgpu.broadcasted_iota(jnp.int32, loaded.shape, 0, layout=layout), loaded)


def widen(stored: Any, wide: Any, seen: Seen | None) -> None:
    """Put a block of numbers, shared memory [BLOCK_KEYS, D], into one of a wider dtype, to be committed.

    With `seen` rows that do not count become 0.
    """
    dim, layout = stored.shape[1], plgpu.Layout.WGMMA_UPCAST_2X

    def part(columns: Any) -> None:
        # float16 is the only type that the hardware converts float8 to; int8 becomes bfloat16 by a permutation of bytes.
        first = jnp.float16 if stored.dtype == jnp.float8_e4m3fn else VALUE_DTYPE
        exact = plgpu.load(stored.at[:, columns], layout=layout, optimized=False).astype(first)
        if seen is not None:
            exact = seen.keep(plgpu.broadcasted_iota(jnp.int32, exact.shape, 0, layout=layout), exact)
        wide[:, columns] = exact if wide.dtype == first else exact.astype(jnp.float32).astype(wide.dtype)

    parts = dim // WIDENED_COLUMNS
    if parts:
        # A loop: of all parts one after another the compiler keeps the addresses in registers. Where it is as short as for int8,
        # and its end is known, they are put one after another.
        end = lax.optimization_barrier(jnp.int32(parts)) if stored.dtype == jnp.int8 else parts
        pl.loop(0, end)(lambda number: part(pl.ds(number * WIDENED_COLUMNS, WIDENED_COLUMNS)))
    if parts * WIDENED_COLUMNS < dim:
        part(pl.ds(parts * WIDENED_COLUMNS, dim - parts * WIDENED_COLUMNS))


def widen_values(stored: Any, wide: Any, seen: Seen, at_an_end: jax.Array) -> None:
    """Widen a block of values of which, `at_an_end`, some rows do not count; what these become a weight of 0 cancels."""
    if stored.dtype == jnp.int8:  # of which none is NaN
        widen(stored, wide, None)
    else:
        lax.cond(at_an_end, lambda: widen(stored, wide, seen), lambda: widen(stored, wide, None))
