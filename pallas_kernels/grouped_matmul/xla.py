"""grouped_matmul in plain XLA: a loop over blocks of rows of one group, as many trips as the groups have blocks.

On CPUs a trip copies its group's matrix, a fifth to a third of its time, and its dot stays the one that XLA multiplies 16-bit
numbers with. `lax.ragged_dot` multiplies every row by every matrix, there and on GPUs.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.matmul import Matrix, Weight

SMALLEST_BLOCK = 8
LARGEST_BLOCK = 128


@partial(jax.jit, static_argnames=("dtype", "expected_rows"))  # so that all layers of a model share one trace
def grouped_matmul(x: jax.Array, weights: Weight, group_sizes: jax.Array, *, dtype: jnp.dtype, expected_rows: int) -> jax.Array:
    """See api.py. A Matrix is made plain at every call: correct, and slow."""
    if isinstance(weights, Matrix):
        x = weights.scheme.rows(x).astype(jnp.float32)
        weights = weights.plain().reshape(weights.shape[0], weights.inputs, weights.outputs).astype(jnp.float32)
    rows = x.shape[0]
    if rows == 1:  # XLA's CPU dots take several times longer for a single row than for two
        x = jnp.pad(x, ((0, 1), (0, 0)))
    block = min(block_rows(expected_rows, weights.shape[0]), x.shape[0])
    ends = jnp.cumsum(group_sizes)
    starts = ends - group_sizes
    trips = last_trips(group_sizes, block)

    def multiply(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        trip, out = carry
        group = jnp.sum((trips <= trip).astype(jnp.int32))
        before = jnp.where(group > 0, trips[jnp.maximum(group - 1, 0)], 0)
        first = starts[group] + (trip - before) * block
        at = jnp.minimum(first, x.shape[0] - block)  # the slice may start early; rows before `first` are not ours
        matrix = _matrix(weights, group)
        product = jnp.dot(lax.dynamic_slice_in_dim(x, at, block), matrix, preferred_element_type=jnp.float32)
        row = at + jnp.arange(block, dtype=jnp.int32)
        ours = (row >= first) & (row < ends[group])
        old = lax.dynamic_slice_in_dim(out, at, block)
        new = jnp.where(ours[:, None], product.astype(dtype), old)
        return trip + 1, lax.dynamic_update_slice_in_dim(out, new, at, 0)

    start = jnp.int32(0), jnp.zeros((x.shape[0], weights.shape[2]), dtype)
    return lax.while_loop(lambda carry: carry[0] < trips[-1], multiply, start)[1][:rows]


def block_rows(rows: int, groups: int) -> int:
    """Rows a trip: a group's share of them as a power of two, within the bounds above. Measured on CPU."""
    block = SMALLEST_BLOCK
    while block < LARGEST_BLOCK and 2 * block * groups <= rows:
        block *= 2
    return block


def last_trips(group_sizes: jax.Array, block: int) -> jax.Array:
    """int32 [X]: the trips up to and with each group's last one; a group takes one for each block that it has begun."""
    return jnp.cumsum(-(-group_sizes // block))


def _matrix(weights: jax.Array, group: jax.Array) -> jax.Array:
    """The matrix [I, O] of a group, which the trip of a loop computes.

    It is taken as integers, because jax 0.10.2 slices bfloat16 on CPUs as float32, and behind a barrier that depends on the trip:
    else all matrices are converted, or copied, ahead of the loop.
    """
    weights, group = lax.optimization_barrier((weights, group))
    stored = lax.bitcast_convert_type(weights, jnp.dtype(f"uint{8 * weights.dtype.itemsize}"))
    return lax.bitcast_convert_type(lax.dynamic_index_in_dim(stored, group, keepdims=False), weights.dtype)
