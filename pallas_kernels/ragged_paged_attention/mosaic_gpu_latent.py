"""ragged_paged_attention over latents in Mosaic GPU, for Hopper: one kernel for decodes and prompts, and one that merges.

The queries are read where they lie and the result is written where it belongs, unless the number of heads must be padded.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from pallas_kernels import mosaic
from pallas_kernels.ragged_paged_attention.mosaic_gpu_latent_kernel import paged_latent
from pallas_kernels.ragged_paged_attention.mosaic_gpu_latent_merge import merge_parts
from pallas_kernels.ragged_paged_attention.mosaic_gpu_latent_plan import BLOCK_KEYS, TILE_ROWS, LatentShape, plan
from pallas_kernels.ragged_paged_attention.options import AttentionOptions

BLOCK_BYTES = 232448 - 2048  # of shared memory, less barriers, factors and what lies between buffers
# Thread blocks of a step that rows are cut for: two for each multiprocessor of an H100; not measured yet. Interpreting one takes
# as long if it has nothing to do.
UNITS, INTERPRETED_UNITS = 2 * 132, 4
MOST_SLOTS = 4  # of keys: more hide nothing


def ragged_paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    query_start: jax.Array,
    kv_length: jax.Array,
    *,
    layer: int,
    options: AttentionOptions,
    kv_scales: None,
    sinks: None,
    interpret: bool = False,
) -> jax.Array:
    """See api.py. With `interpret` the kernels are interpreted, on CPUs."""
    # The layer is an argument, so that all layers of a model share one trace and one kernel.
    number = jnp.full(1, layer, jnp.int32)
    attended: jax.Array = _attend(q, kv_pages, page_table, query_start, kv_length, number, options=options, interpret=interpret)
    return attended


@partial(jax.jit, static_argnames=("options", "interpret"))
def _attend(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    query_start: jax.Array,
    kv_length: jax.Array,
    layer: jax.Array,
    *,
    options: AttentionOptions,
    interpret: bool,
) -> jax.Array:
    tokens, heads, dim = q.shape
    assert options.value_dim is not None  # `supports` has asked
    padded = padded_heads(heads)
    room = max(tokens, TILE_ROWS // padded)  # a whole tile
    shape = LatentShape(
        tokens=room,
        rows=page_table.shape[0],
        heads=padded,
        dim=dim,
        value_dim=options.value_dim,
        page_size=kv_pages.shape[4],
        pages_per_row=page_table.shape[1],
        scale=options.scale,
        slots=key_slots(dim, q.dtype.itemsize),
        wanted=max(1, (INTERPRETED_UNITS if interpret else UNITS) * TILE_ROWS // max(padded, TILE_ROWS)),
    )
    units, merges = plan(query_start, kv_length, shape)
    flat = jnp.pad(q, ((0, room - tokens), (0, padded - heads), (0, 0))).reshape(-1, dim)
    interpreter = mosaic.interpreter() if interpret else False
    attended = paged_latent(flat, kv_pages, page_table, units, layer, shape=shape, interpret=interpreter)
    out = merge_parts(attended, merges, shape=shape, interpret=interpreter) if shape.merges else attended.out
    return out.reshape(room, padded, -1)[:tokens, :heads]


def padded_heads(heads: int) -> int:
    """Return how many rows of tiles a token's heads take: tiles hold whole tokens, or tokens whole tiles."""
    if heads > TILE_ROWS:
        return -(-heads // TILE_ROWS) * TILE_ROWS
    return max(mosaic.ROW_TILE, 1 << (heads - 1).bit_length())


def key_slots(dim: int, item_bytes: int) -> int:
    """Return how many blocks of keys a thread block keeps in shared memory: two of 576 numbers."""
    fixed = TILE_ROWS * (dim + BLOCK_KEYS) * item_bytes
    return min(MOST_SLOTS, (BLOCK_BYTES - fixed) // (BLOCK_KEYS * dim * item_bytes))
