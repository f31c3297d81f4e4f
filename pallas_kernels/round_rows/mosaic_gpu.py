"""round_rows in Mosaic GPU, for Hopper: one thread block a row, whose numbers are read once and stay in registers.

What rows are made of is computed in the same kernel, the residual sum written besides. Devices that have parts of the rows each
run the kernel on theirs: the compiler is told so, since it cannot divide a kernel by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import mosaic
from pallas_kernels.round_rows.e4m3 import VALUES, step_of
from pallas_kernels.round_rows.mosaic_gpu_support import neighbours
from pallas_kernels.round_rows.problem import Activation, Gate, Norm

GRID = ("token", "shard")
SHARD = "s"
PRODUCT_ROWS = 16  # cuBLASLt's products in FP8 are of as many rows, or a multiple: XLA would copy what has others
Parts = tuple[jax.Array, jax.Array]
"""Values and steps."""


def round_rows(x: jax.Array, *, interpret: bool = False) -> Parts:
    """See api.py; x[T, s, I]. With `interpret` the kernel is interpreted, on CPUs."""
    parts: Parts = _on_devices(_rows, interpret)(x, interpret)
    return parts


def round_normed(
    x: jax.Array, added: jax.Array | None, scale: jax.Array, *, norm: Norm, interpret: bool = False
) -> tuple[jax.Array, Parts]:
    """See api.py."""
    if added is None:
        values, steps = _on_devices(_normed, interpret)(x, scale, norm, interpret)
        return x, (values, steps)
    total, values, steps = _on_devices(_added_and_normed, interpret)(x, added, scale, norm, interpret)
    return total, (values, steps)


def round_gated(sums: jax.Array, gate: Gate, *, activation: Activation, dtype: jnp.dtype, interpret: bool = False) -> Parts:
    """See api.py."""
    parts: Parts = _on_devices(_gated, interpret)(sums, gate.steps, gate.scales, activation, dtype, interpret)
    return parts


def _on_devices(function: custom_partitioning, interpret: bool) -> Callable[..., Any]:
    """The function, divided over devices; interpreted, it has effects, which cannot be divided."""
    run: Callable[..., Any] = function.fun if interpret else function
    return run


@partial(custom_partitioning, static_argnums=(1,))
def _rows(x: jax.Array, interpret: bool) -> Parts:
    def kernel(x: Any, values: Any, steps: Any) -> None:
        place = _place(2)
        _round(_load(x.at[place]), values, steps, place)

    parts: Parts = _launch(kernel, _parts(x.shape), x.shape[:2], interpret)(x)
    return parts


@partial(custom_partitioning, static_argnums=(2, 3))
def _normed(x: jax.Array, scale: jax.Array, norm: Norm, interpret: bool) -> Parts:
    def kernel(x: Any, scale: Any, values: Any, steps: Any) -> None:
        place = _place(1)
        _round(_norm(_load(x.at[place]), scale, norm, x.dtype), values, steps, place)

    parts: Parts = _launch(kernel, _parts(x.shape), x.shape[:1], interpret)(x, scale)
    return parts


@partial(custom_partitioning, static_argnums=(3, 4))
def _added_and_normed(
    x: jax.Array, added: jax.Array, scale: jax.Array, norm: Norm, interpret: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    def kernel(x: Any, added: Any, scale: Any, total: Any, values: Any, steps: Any) -> None:
        place = _place(1)
        summed = (_load(x.at[place]) + _load(added.at[place])).astype(total.dtype)
        total[place] = summed
        _round(_norm(summed.astype(jnp.float32), scale, norm, x.dtype), values, steps, place)

    results = (jax.ShapeDtypeStruct(x.shape, x.dtype), *_parts(x.shape))
    done: tuple[jax.Array, jax.Array, jax.Array] = _launch(kernel, results, x.shape[:1], interpret)(x, added, scale)
    return done


@partial(custom_partitioning, static_argnums=(3, 4, 5))
def _gated(
    sums: jax.Array, rows: jax.Array, scales: jax.Array, activation: Activation, dtype: jnp.dtype, interpret: bool
) -> Parts:
    *shape, both = sums.shape
    width = both // 2

    def kernel(sums: Any, rows: Any, scales: Any, values: Any, steps: Any) -> None:
        token, shard = _place(2)
        row, halves = rows[token], (pl.ds(half * width, width) for half in range(2))
        gate, up = (_load(sums.at[token, shard, half]) * row * _load(scales.at[shard, half]) for half in halves)
        _round(activation(gate, up).astype(dtype).astype(jnp.float32), values, steps, (token, shard))

    parts: Parts = _launch(kernel, _parts((*shape, width)), tuple(shape), interpret)(sums, rows, scales)
    return parts


def _launch(kernel: Callable[..., None], results: Any, rows: tuple[int, ...], interpret: bool) -> Callable[..., Any]:
    run: Callable[..., Any] = plgpu.kernel(
        kernel,
        out_type=results,
        grid=rows,
        grid_names=GRID[: len(rows)],
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        kernel_name="round_rows",
        interpret=mosaic.interpreter() if interpret else None,
    )
    return run


def _parts(shape: tuple[int, ...]) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    tokens = -(-shape[0] // PRODUCT_ROWS) * PRODUCT_ROWS
    return jax.ShapeDtypeStruct((tokens, *shape[1:]), VALUES), jax.ShapeDtypeStruct(shape[:-1], jnp.float32)


def _place(axes: int) -> tuple[Any, ...]:
    """Which row a thread block has."""
    return tuple(map(lax.axis_index, GRID[:axes]))


def _load(row: Any) -> jax.Array:
    """A row in registers, in float32."""
    (width,) = row.shape
    layout = plgpu.Layout.WG_STRIDED((width,), vec_size=neighbours(width))
    numbers: jax.Array = plgpu.load(row, layout=layout, optimized=False).astype(jnp.float32)
    return numbers


def _norm(row: jax.Array, scale: Any, norm: Norm, dtype: jnp.dtype) -> jax.Array:
    """The norm of a row, rounded to a dtype."""
    inverse = lax.rsqrt(jnp.sum(row * row) / row.size + norm.eps)
    normed = row * inverse * (_load(scale) + norm.offset if norm.offset else _load(scale))
    return normed.astype(dtype).astype(jnp.float32)


def _round(row: jax.Array, values: Any, steps: Any, place: tuple[Any, ...]) -> None:
    step = step_of(jnp.max(jnp.abs(row)))
    values[place] = (row / step).astype(VALUES)
    steps[place] = step


def _divide(function: custom_partitioning, rule: str) -> None:
    """Tell how devices divide a kernel's arrays: as they divide the dimension `s` of the first one, and by no other.

    `rule` names dimensions, as Shardy's rules do.
    """
    inputs, outputs = ([names.split() for names in side.split(",")] for side in rule.split("->"))
    whole = tuple(name for name in dict.fromkeys(chain(*inputs, *outputs)) if name != SHARD)

    def partition(*arguments: Any) -> tuple[Mesh, Callable[..., Any], tuple[NamedSharding, ...], tuple[NamedSharding, ...]]:
        *static, mesh, shapes, _ = arguments
        axes = dict(zip(inputs[0], shapes[0].sharding.spec, strict=False))

        def sharding(names: list[str]) -> NamedSharding:
            spec = PartitionSpec(*(axes.get(name) if name == SHARD else None for name in names))  # type: ignore[no-untyped-call]
            return NamedSharding(mesh, spec)

        def part(*arrays: jax.Array) -> Any:
            return function.fun(*arrays, *static)

        return mesh, part, tuple(map(sharding, outputs)), tuple(map(sharding, inputs))

    function.def_partition(partition, sharding_rule=rule, need_replication_factors=whole)


_divide(_rows, "t s i -> p s i, t s")
_divide(_normed, "t e, e -> p e, t")
_divide(_added_and_normed, "t e, t e, e -> t e, p e, t")
_divide(_gated, "t s b, t, s b -> p s f, t s")
