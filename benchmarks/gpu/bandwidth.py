"""What the device reaches where nothing is in the way: the bounds that every other figure is held against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu.pages import random_array
from benchmarks.gpu.sizes import DTYPE, Sizes
from benchmarks.gpu.tasks import Figure, Task
from benchmarks.gpu.timing import time_calls

LINE = 2048  # numbers that a reduction adds up
MATMULS = 4  # in a program, each fed by the one before


@dataclass(frozen=True, slots=True)
class _Bound:
    """A program, and what one of its operations moves or computes."""

    labels: Figure
    function: Callable[..., Any]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    feeds: bool
    operations: int = 1


def tasks(sizes: Sizes) -> Iterator[Task]:
    """A copy made by the driver, one made by a kernel, a reduction that only reads, and a matrix product."""
    numbers = sizes.copy_bytes // 4
    array = jax.ShapeDtypeStruct((numbers // LINE, LINE), jnp.float32)
    square = jax.ShapeDtypeStruct((sizes.matmul, sizes.matmul), DTYPE)
    moved = 2 * sizes.copy_bytes
    for bound in (
        _Bound({"what": "copy", "bytes": moved}, jnp.copy, (array,), feeds=True),
        _Bound({"what": "kernel copy", "bytes": moved}, lambda x: -x, (array,), feeds=True),
        _Bound({"what": "read", "bytes": sizes.copy_bytes}, lambda x: jnp.sum(x, axis=1), (array,), feeds=False),
        _Bound({"what": "matmul", "flops": 2 * sizes.matmul**3}, _matmuls, (square, square), feeds=True, operations=MATMULS),
    ):
        yield Task(bound.labels, _timed(sizes, bound))


def _matmuls(x: jax.Array, weights: jax.Array) -> jax.Array:
    for _ in range(MATMULS):
        # Scaled, so that the numbers stay as random as they were.
        x = (jnp.dot(x, weights, preferred_element_type=jnp.float32) * x.shape[0] ** -0.5).astype(x.dtype)
    return x


def _timed(sizes: Sizes, bound: _Bound) -> Callable[[], Figure]:
    def measure() -> Figure:
        first, *others = (random_array(shape) for shape in bound.shapes)
        run = jax.jit(bound.function).lower(first, *others).compile()

        def call(_: int, fed: jax.Array) -> jax.Array:
            out: jax.Array = run(fed if bound.feeds else first, *others)
            return out

        timing, _ = time_calls(call, first, sizes.pace, operations=bound.operations)
        return timing

    return measure
