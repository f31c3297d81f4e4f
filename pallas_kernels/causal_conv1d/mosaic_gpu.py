"""causal_conv1d in Mosaic GPU, for Hopper: a row's last inputs are read once, stay in registers, and are written once.

A thread block has a row and as many channels as it has threads, or twice as many. The row's tokens come one after the other: each
is multiplied with those before it, and the oldest is forgotten. It is for steps of few tokens a row, of which XLA makes several
kernels, each as long as its start.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.causal_conv1d.mosaic_gpu_support import THREADS, neighbours
from pallas_kernels.mosaic_rows import KernelRows, walk
from pallas_kernels.state_rows import StateRows


def causal_conv1d(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    states: jax.Array,
    rows: StateRows,
    *,
    layer: int,
    silu: bool,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See api.py. With `interpret` the kernel is interpreted, on CPUs."""
    done: tuple[jax.Array, jax.Array] = _run(x, weight, bias, states, KernelRows.of(rows, layer), silu=silu, interpret=interpret)
    return done


@partial(jax.jit, static_argnames=("silu", "interpret"))
def _run(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    states: jax.Array,
    rows: KernelRows,
    *,
    silu: bool,
    interpret: bool,
) -> tuple[jax.Array, jax.Array]:
    places, channels = states.shape[1], x.shape[1]
    block = THREADS * neighbours(channels)
    table = jax.new_ref(states.reshape(-1, *states.shape[2:]))
    run = plgpu.kernel(
        partial(_kernel, places=places, block=block, silu=silu),
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(rows.source.shape[0], channels // block),
        grid_names=("row", "channels"),
        # Threads share nothing, so they never wait for each other.
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane, unsafe_no_auto_barriers=True, reduction_scratch_bytes=0
        ),
        kernel_name="causal_conv1d",
        interpret=mosaic.interpreter() if interpret else None,
    )
    out = run(x, weight, bias, rows, table)
    return out, jax.freeze(table).reshape(states.shape)


class _Refs(NamedTuple):
    """Memory of the kernel, in the order of its arguments: inputs, states [L * N, W-1, C], outputs."""

    x: Any
    weight: Any
    bias: Any
    rows: KernelRows
    states: Any
    out: Any


_Inputs = tuple[jax.Array, ...]
"""The last W - 1 of each of the block's channels, oldest first."""


def _kernel(*arguments: Any, places: int, block: int, silu: bool) -> None:
    refs = _Refs(*arguments)
    row, channels = lax.axis_index("row"), pl.ds(lax.axis_index("channels") * block, block)
    load = partial(_load, channels=channels)
    taps = [load(refs.weight, tap).astype(jnp.float32) for tap in range(refs.weight.shape[0])]
    bias = [] if refs.bias is None else [load(refs.bias).astype(jnp.float32)]

    def read(place: jax.Array) -> _Inputs:
        return tuple(load(refs.states, place, i) for i in range(refs.states.shape[1]))

    def step(token: jax.Array, before: _Inputs) -> _Inputs:
        inputs = (*before, load(refs.x, token))
        products = [tap * value.astype(jnp.float32) for tap, value in zip(taps, inputs, strict=True)]
        total = reduce(jnp.add, products + bias)
        refs.out[token, channels] = (jax.nn.silu(total) if silu else total).astype(refs.out.dtype)
        return inputs[1:]

    def write(place: jax.Array, inputs: _Inputs) -> None:
        for i, value in enumerate(inputs):
            refs.states[place, i, channels] = value

    walk(refs.rows, row, places, read=read, step=step, write=write)


def _load(ref: Any, *place: Any, channels: Any) -> jax.Array:
    """The block's channels of a row of an array."""
    layout = plgpu.Layout.WG_STRIDED((channels.size,), vec_size=channels.size // THREADS)
    loaded: jax.Array = plgpu.load(ref.at[(*place, channels)], layout=layout, optimized=False)
    return loaded
