"""Products by a matrix that several devices hold a part of each, in a layout that only our kernels read.

The compiler cannot divide a kernel's call, so each device's is said with shard_map: by its own outputs, of all of x; or by its
own inputs, of its part of x, whose sums the devices then add.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pallas_kernels.matmul.division import Division
from pallas_kernels.matmul.matrix import Matrix
from pallas_kernels.matmul.words import Words

Multiply = Callable[[jax.Array, Matrix], jax.Array]


def multiply_parts(
    x: jax.Array, matrix: Matrix, layout: Words, division: Division, summed: jnp.dtype | None, multiply: Multiply
) -> jax.Array:
    """x[T, I] times a matrix of divided words: float32[T, *outputs].

    Args:
        x: rows, whose inputs may be several dimensions.
        matrix: of that layout, which is so divided.
        summed: what a device's sums are rounded to before others' are added; None for float32.
        multiply: rows by a device's part, which is a matrix that is not divided.
    """
    split, dtype = len(layout.inputs), jnp.dtype(jnp.float32) if summed is None else summed
    added = division.spec[0]

    def multiplied(x: jax.Array, values: jax.Array, scales: Any) -> jax.Array:
        y = multiply(x.reshape(x.shape[0], -1), part_of(replace(matrix, values=values, scales=scales)))
        return y if added is None else jax.lax.psum(y.astype(dtype), added).astype(jnp.float32)

    specs = matrix.specs(division.spec)
    sharded = jax.shard_map(
        multiplied,
        mesh=division.mesh,
        in_specs=(_of_rows(division.spec[:split]), specs.values, specs.scales),
        out_specs=_of_rows(division.spec[split:]),
        check_vma=False,  # the check knows nothing of kernels
    )
    y: jax.Array = sharded(x.reshape(x.shape[0], *layout.shape[:split]), matrix.values, matrix.scales)
    return y


def part_of(matrix: Matrix) -> Matrix:
    """What a device has of a matrix, under shard_map: of divided words a matrix that is not divided, any other as it is."""
    layout = matrix.layout
    if not isinstance(layout, Words) or layout.division is None:
        return matrix
    return replace(matrix, layout=replace(layout, shape=layout.division.part_shape(layout.shape), division=None))


def _of_rows(axes: Any) -> PartitionSpec:
    """Of rows, each of which is divided so."""
    return PartitionSpec(None, *axes)  # type: ignore[no-untyped-call]
