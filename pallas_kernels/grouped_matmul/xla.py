"""grouped_matmul in plain XLA: a loop over blocks of rows of one group, as many trips as the groups have blocks."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

SMALLEST_BLOCK = 8
LARGEST_BLOCK = 128


@partial(jax.jit, static_argnames="dtype")  # so that all layers of a model share one trace
def grouped_matmul(x: jax.Array, weights: jax.Array, group_sizes: jax.Array, *, dtype: jnp.dtype) -> jax.Array:
    """See api.py."""
    rows = x.shape[0]
    if rows == 1:  # with a single row XLA's CPU dots are several times slower than with two
        x = jnp.pad(x, ((0, 1), (0, 0)))
    block = block_rows(x.shape[0], weights.shape[0])
    ends = jnp.cumsum(group_sizes)
    starts = ends - group_sizes
    last_trips = jnp.cumsum(-(-group_sizes // block))

    def multiply(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        trip, out = carry
        group = jnp.sum((last_trips <= trip).astype(jnp.int32))
        blocks = -(-group_sizes[group] // block)
        first = starts[group] + (trip - last_trips[group] + blocks) * block
        at = jnp.minimum(first, x.shape[0] - block)  # the slice may start early; rows before `first` are not ours
        product = jnp.dot(
            lax.dynamic_slice_in_dim(x, at, block),
            lax.dynamic_index_in_dim(weights, group, keepdims=False),
            preferred_element_type=jnp.float32,
        )
        row = at + jnp.arange(block, dtype=jnp.int32)
        ours = (row >= first) & (row < ends[group])
        old = lax.dynamic_slice_in_dim(out, at, block)
        new = jnp.where(ours[:, None], product.astype(dtype), old)
        return trip + 1, lax.dynamic_update_slice_in_dim(out, new, at, 0)

    start = jnp.int32(0), jnp.zeros((x.shape[0], weights.shape[2]), dtype)
    return lax.while_loop(lambda carry: carry[0] < last_trips[-1], multiply, start)[1][:rows]


def block_rows(rows: int, groups: int) -> int:
    """Rows a trip: about twice a group's share, so that most groups take one trip, within the bounds above and `rows`."""
    block = SMALLEST_BLOCK
    while block < LARGEST_BLOCK and block * groups < 2 * rows:
        block *= 2
    return min(block, rows)
