"""gated_linear_attention in Mosaic GPU, for Hopper: a head's state is read once, stays in registers, and is written once.

A thread block has a row, a head and 32 columns of its values, or 16: columns do not depend on each other. A warp has a quarter
of them and all D rows of the state, so that no sum leaves it, and nothing passes through shared memory. The row's tokens come one
after the other: a pass over the state for what it knows of the key and answers the query, and one that makes it fade and adds to
it, as in native_columns.h. So a token's result does not depend on what else is in the batch, nor on how its row is cut.

It is for rows of few tokens, whose time is that of moving states: those of prompts are multiplied by matrices, in xla.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.gated_linear_attention.mosaic_gpu_support import SHORT, STATE_ROWS, WARPS, block_columns
from pallas_kernels.gated_linear_attention.problem import NORM_EPS, LinearOptions
from pallas_kernels.gated_linear_attention.xla import with_long_rows
from pallas_kernels.mosaic_rows import KernelRows, walk
from pallas_kernels.state_rows import StateRows, few_tokens


def gated_linear_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decay: jax.Array,
    beta: jax.Array,
    states: jax.Array,
    rows: StateRows,
    *,
    layer: int,
    options: LinearOptions,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See api.py. With `interpret` the kernel is interpreted, on CPUs."""
    packed, begins = _pack(q, k, v, options)
    heads = _Heads(q.shape[1], q.shape[2], begins)
    most = None if few_tokens(len(q), *rows.destination.shape) is None else SHORT
    out, states = _run(
        packed, decay, beta, states, KernelRows.of(rows, layer), heads=heads, options=options, most=most, interpret=interpret
    )
    if most is None:
        return out, states
    return with_long_rows(out, q, k, v, decay, beta, states, rows, most=most, layer=layer, options=options)


class _Begins(NamedTuple):
    """Where a token's queries, keys and values begin among its numbers."""

    q: int
    k: int
    v: int


class _Heads(NamedTuple):
    """K and D, and where a token has its heads."""

    number: int
    dim: int
    begins: _Begins


def _pack(q: jax.Array, k: jax.Array, v: jax.Array, options: LinearOptions) -> tuple[jax.Array, _Begins]:
    """[T, 2 K D + H V], in the order in which models have them: then they are slices of one array, which is no operation.

    Delta nets have queries, keys and values, Mamba-2 its x, B and C.
    """
    keys, values = (part.shape[1] * part.shape[2] for part in (k, v))
    parts = (q, k, v) if options.delta else (v, k, q)
    # [T, 1, numbers] as a device has them: XLA knows slices again by their shape alone.
    packed = jnp.concatenate([part.reshape(len(part), 1, -1) for part in parts], axis=2)[:, 0]
    return packed, _Begins(0, keys, 2 * keys) if options.delta else _Begins(values + keys, values, 0)


@partial(jax.jit, static_argnames=("heads", "options", "most", "interpret"))
def _run(
    packed: jax.Array,
    decay: jax.Array,
    beta: jax.Array,
    states: jax.Array,
    rows: KernelRows,
    *,
    heads: _Heads,
    options: LinearOptions,
    most: int | None,
    interpret: bool,
) -> tuple[jax.Array, jax.Array]:
    _, places, value_heads, _, value_dim = states.shape
    table = jax.new_ref(states.reshape(-1, *states.shape[2:]))
    run = plgpu.kernel(
        partial(_kernel, places=places, most=most, heads=heads, options=options),
        out_type=jax.ShapeDtypeStruct((len(packed), value_heads, value_dim), packed.dtype),
        grid=(rows.source.shape[0], value_heads, value_dim // block_columns(value_dim)),
        grid_names=("row", "head", "columns"),
        # Warps share nothing, so they never wait for each other.
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane, unsafe_no_auto_barriers=True, reduction_scratch_bytes=0
        ),
        kernel_name="gated_linear_attention",
        interpret=mosaic.interpreter() if interpret else None,
    )
    out = run(packed, decay, beta, rows, table)
    return out, jax.freeze(table).reshape(states.shape)


class _Refs(NamedTuple):
    """Memory of the kernel, in the order of its arguments: inputs, states [L * N, H, D, V], outputs."""

    packed: Any
    decay: Any
    beta: Any
    rows: KernelRows
    states: Any
    out: Any


def _kernel(*arguments: Any, places: int, most: int | None, heads: _Heads, options: LinearOptions) -> None:
    refs = _Refs(*arguments)
    row, head, part = (lax.axis_index(axis) for axis in ("row", "head", "columns"))
    width = block_columns(refs.out.shape[2])
    item = _Item(refs, heads, options, head, part * width, width)
    walk(refs.rows, row, places, most, read=item.read, step=item.step, write=item.write)


class _Item(NamedTuple):
    """What a thread block has: a head, and so many columns of its values from the `first` on."""

    refs: _Refs
    heads: _Heads
    options: LinearOptions
    head: jax.Array
    first: jax.Array
    width: int

    def read(self, place: jax.Array) -> jax.Array:
        state: jax.Array = plgpu.load(self._state(place), layout=_layout(self.width), optimized=False)
        return state

    def write(self, place: jax.Array, state: jax.Array) -> None:
        self._state(place)[...] = state

    def step(self, token: jax.Array, state: jax.Array) -> jax.Array:
        """Write a token's result, and return the state after it, f32[D, columns]."""
        refs, options, (number, dim, begins) = self.refs, self.options, self.heads
        _, heads, value_dim = refs.out.shape
        key_head = lax.div(self.head, jnp.int32(heads // number))
        query, key = (self._load(token, begin + key_head * dim, dim, 0) for begin in (begins.q, begins.k))
        value = self._load(token, begins.v + self.head * value_dim + self.first, self.width, 1)
        if options.l2_norm:
            query, key = (vector * lax.rsqrt(jnp.sum(vector * vector) + NORM_EPS) for vector in (query, key))
        query *= options.scale
        key_rows, query_rows = (self._wide(vector, state, 0) for vector in (key, query))
        known, asked = (jnp.sum(state * rows, axis=0) for rows in (key_rows, query_rows))
        fade = jnp.exp(refs.decay[token, self.head])
        added = (value - known * fade if options.delta else value) * refs.beta[token, self.head]
        result = asked * fade + added * jnp.sum(query * key)
        refs.out[token, self.head, pl.ds(self.first, self.width)] = result.astype(refs.out.dtype)
        return state * fade + key_rows * self._wide(added, state, 1)

    def _state(self, place: jax.Array) -> Any:
        return self.refs.states.at[place, self.head, :, pl.ds(self.first, self.width)]

    def _load(self, token: jax.Array, begin: jax.Array, count: int, axis: int) -> jax.Array:
        """Numbers of a token in float32, laid out along an axis of the state."""
        numbers = self.refs.packed.at[token, pl.ds(begin, count)]
        loaded: jax.Array = plgpu.load(numbers, layout=_layout(self.width).reduce(1 - axis), optimized=False)
        return loaded.astype(jnp.float32)

    def _wide(self, vector: jax.Array, state: jax.Array, axis: int) -> jax.Array:
        """A vector along an axis of the state, beside all of the other."""
        wide: jax.Array = plgpu.layout_cast(lax.broadcast_in_dim(vector, state.shape, [axis]), _layout(self.width))
        return wide


def _layout(columns: int) -> Any:
    """How [D, columns] lies in registers: a warp has a quarter of the columns, two threads a row of it, 16 rows at a time."""
    quarter = columns // WARPS
    tiling = plgpu.Tiling(((STATE_ROWS, columns), (STATE_ROWS, quarter), (quarter // 2,)))
    return plgpu.Layout.TILED(tiling, warp_dims=(-4,), lane_dims=(-3, -2), vector_dim=-1)
