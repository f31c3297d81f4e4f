"""What every Mosaic GPU kernel shares: how to interpret one, and how its tiles lie in shared memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

ROW_TILE = 8  # rows of a shared memory tile, for every swizzle
REGISTERS = 2**16  # of a multiprocessor
MOST_REGISTERS = 248  # of a thread; hardware gives them in eights
WARPGROUP = 128  # threads


def interpreter() -> Any:
    """Return what `plgpu.kernel(interpret=...)` takes to run a kernel on CPUs; `interpret=True` does not work for Mosaic.

    Accesses to shared memory that no barrier orders are reported on standard output, as "RACE DETECTED".
    """
    return plgpu.InterpretGPUParams(detect_races=True)


class Registers(NamedTuple):
    """Of a thread, where warpgroups of a thread block are given different numbers of them."""

    loading: int
    computing: int


def divide_registers(groups: int, loading: int) -> Registers | None:
    """Give what one warpgroup that loads does not need to `groups` that compute; None where each has enough as launched.

    A thread block has what it was launched with, as many for every thread and a multiple of eight. Of three warpgroups that is
    504 in all, not 512: one that asked for the rest would wait forever (PTX's `setmaxnreg`).
    """
    launched = REGISTERS // (WARPGROUP * (groups + 1)) // 8 * 8
    if launched >= MOST_REGISTERS:
        return None
    return Registers(loading, ((groups + 1) * launched - loading) // groups // 8 * 8)


def set_registers(registers: Registers | None, *, computing: bool) -> None:
    """Take or leave what `divide_registers` says; once, at the beginning of what a warpgroup does."""
    if registers is not None:
        if computing:
            plgpu.set_max_registers(registers.computing, action="increase")
        else:
            plgpu.set_max_registers(registers.loading, action="decrease")


def swizzle_bytes(columns: int, dtype: Any) -> int:
    """Return the widest swizzle, 128, 64 or 32 bytes, that rows of `columns` elements divide into.

    Raises:
        ValueError: none does, so a matrix of that width cannot be an operand of wgmma.
    """
    row = columns * jnp.dtype(dtype).itemsize
    for width in (128, 64, 32):
        if row % width == 0:
            return width
    raise ValueError(f"rows of {columns} {jnp.dtype(dtype).name} are not a multiple of 32 bytes")


def tiled(shape: tuple[int, ...], dtype: Any, swizzle: int | None = None) -> Any:
    """Describe a shared memory matrix [..., rows, columns], tiled and swizzled as TMA writes and wgmma reads it.

    Args:
        shape: axes before the last two number buffers.
        dtype: of its elements.
        swizzle: bytes, where it must agree with another operand's; None for the widest.
    """
    width = swizzle_bytes(shape[-1], dtype) if swizzle is None else swizzle
    tiling = plgpu.TilingTransform((ROW_TILE, width // jnp.dtype(dtype).itemsize))  # type: ignore[abstract]
    return plgpu.SMEM(shape, dtype, transforms=(tiling, plgpu.SwizzleTransform(width)))  # type: ignore[abstract]
