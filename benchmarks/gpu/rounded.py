"""Products with matrices in int8 and int4 beside those in bfloat16: what reading fewer bytes gains in a decode step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu.pages import random_array
from benchmarks.gpu.programs import finish
from benchmarks.gpu.sizes import DTYPE, Sizes
from benchmarks.gpu.tasks import Figure, Task
from benchmarks.gpu.timing import time_calls
from pallas_kernels.matmul import Layout, Weight, Words, matmul, pack, packed_shape
from pallas_kernels.quantization import SCHEMES, Scheme
from pallas_kernels.registry import Target

PRODUCTS = 2  # of an operation: to the wide side of an MLP, and back
INPUTS = (0,)
BYTES: Mapping[str, float] = MappingProxyType({"none": 2, "int8": 1, "int4": 0.5 + 4 / 128})
"""Of a number, by scheme; a group of int4 has a scale in float32."""


def cases(sizes: Sizes) -> Iterator[tuple[int, str, str]]:
    """Rows, a scheme's name and the implementation's; matrices that are not rounded are XLA's."""
    kernels = [kernel for kernel in sizes.kernels if kernel.startswith("mosaic_gpu")]
    for rows in sizes.rounded_rows:
        yield rows, "none", "xla"
        for scheme in ("int8", "int4"):
            for kernel in kernels:
                yield rows, scheme, kernel


def tasks(sizes: Sizes) -> Iterator[Task]:
    for rows, scheme, kernel in cases(sizes):
        labels = {"what": "MLP", "rows": rows, "scheme": scheme, "implementation": kernel}
        yield Task(labels, _timed(sizes, rows, scheme, kernel))


def lower(sizes: Sizes, rows: int, scheme: str, kernel: str, device: jax.Device) -> jax.stages.Lowered:
    """A chain of operations, each of matrices of its own: (x, wide and narrow matrices) -> x."""
    placed = partial(jax.ShapeDtypeStruct, sharding=jax.sharding.SingleDeviceSharding(device))
    matrices = [
        jax.tree.map(lambda part: placed(part.shape, part.dtype), _shape(shape, SCHEMES[scheme])) for shape in shapes_of(sizes)
    ]
    chain = partial(_chain, kernel=kernel, target=Target.of(device))
    return jax.jit(chain).lower(placed((rows, sizes.rounded[0]), DTYPE), matrices)


def _chain(x: jax.Array, matrices: list[Weight], kernel: str, target: Target) -> jax.Array:
    for matrix in matrices:
        # Scaled, so that the numbers stay as large as they were.
        y = matmul(x, matrix, summed=x.dtype, implementation=kernel, target=target)
        x = (y * x.shape[1] ** -0.5).astype(x.dtype)
    return x


def shapes_of(sizes: Sizes) -> list[tuple[int, int]]:
    narrow, wide = sizes.rounded
    return [(narrow, wide), (wide, narrow)] * sizes.operations


def layout_of(shape: tuple[int, int], scheme: Scheme) -> Layout:
    return Layout(INPUTS) if scheme.name == "none" else Words.of(INPUTS, shape, scheme)


def _shape(shape: tuple[int, int], scheme: Scheme) -> Any:
    return packed_shape(jax.ShapeDtypeStruct(shape, jnp.dtype(DTYPE)), layout_of(shape, scheme), scheme)


def _timed(sizes: Sizes, rows: int, name: str, kernel: str) -> Callable[[], Figure]:
    def measure() -> Figure:
        device, scheme = jax.devices()[0], SCHEMES[name]
        run = finish(lower(sizes, rows, name, kernel, device), device)
        matrices = [
            pack(random_array(jax.ShapeDtypeStruct(shape, jnp.dtype(DTYPE))), layout_of(shape, scheme), scheme)
            for shape in shapes_of(sizes)
        ]
        x = random_array(jax.ShapeDtypeStruct((rows, sizes.rounded[0]), jnp.dtype(DTYPE)))
        timing, _ = time_calls(lambda _, x: run(x, matrices), x, sizes.pace, operations=sizes.operations)
        return timing | {"bytes": read_bytes(sizes, name)}

    return measure


def read_bytes(sizes: Sizes, scheme: str) -> int:
    """Of the matrices of one operation."""
    return int(PRODUCTS * sizes.rounded[0] * sizes.rounded[1] * BYTES[scheme])
