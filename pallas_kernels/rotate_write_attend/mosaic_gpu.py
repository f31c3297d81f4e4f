"""rotate_write_attend in Mosaic GPU, for Hopper: the decode kernel, which rotates and writes as well, and the one that merges."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from pallas_kernels.mosaic import ROW_TILE
from pallas_kernels.ragged_paged_attention.mosaic_gpu import (
    KernelCall,
    TileShape,
    decode,
    decode_shape,
    sharing_heads,
    tokens_as_tiles,
)
from pallas_kernels.ragged_paged_attention.mosaic_gpu_softmax import LOG2_E
from pallas_kernels.ragged_paged_attention.mosaic_gpu_step_keys import StepKeys, StepShape
from pallas_kernels.ragged_paged_attention.options import AttentionOptions
from pallas_kernels.ragged_paged_attention.query_tiles import Rows
from pallas_kernels.rotate_and_write import Rotation, packed_heads


def rotate_write_attend(
    kv_pages: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    rotation: Rotation,
    slots: jax.Array,
    page_table: jax.Array,
    query_start: jax.Array,
    kv_length: jax.Array,
    *,
    layer: int,
    options: AttentionOptions,
    sinks: jax.Array | None,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See api.py. With `interpret` the kernels are interpreted, on CPUs."""
    logits = None if sinks is None else sinks.astype(jnp.float32) * LOG2_E
    # The layer is an argument, so that all layers of a model share one trace and one kernel.
    call = KernelCall(kv_pages, None, Rows(page_table, query_start, kv_length), jnp.full(1, layer, jnp.int32), logits)
    done: tuple[jax.Array, jax.Array] = _run(packed_heads(q, k, v), rotation, slots, call, options=options, interpret=interpret)
    return done


@partial(jax.jit, static_argnames=("options", "interpret"))
def _run(
    packed: jax.Array, rotation: Rotation, slots: jax.Array, call: KernelCall, *, options: AttentionOptions, interpret: bool
) -> tuple[jax.Array, jax.Array]:
    (tokens, every, dim), kv_heads = packed.shape, call.kv_pages.shape[3]
    heads = every // kv_heads - 2
    tiles = tokens_as_tiles(call.rows, tokens)
    shared = sharing_heads(kv_heads, heads, dim * packed.dtype.itemsize)
    rows = -(-shared * heads // ROW_TILE) * ROW_TILE
    step = StepShape(heads, kv_heads, dim, rotation.cos.shape[1], options)
    shape = decode_shape(call, TileShape(heads, rows, 1, shared), options, interpret, step)
    keys = StepKeys(packed, *rotation, slots, call.rows.query_start[tiles.row])
    attended, kv_pages = decode(call, None, keys, tiles, shape, heads, tokens, interpret)
    return attended.reshape(tokens, heads * kv_heads, dim), kv_pages
