"""add_lora in plain XLA for many slots: rows in blocks, none with rows of two slots, each times a copy of its slot's matrices.

There are many where each expert of each adapter is one, and a step's rows are of few of them: what is read and multiplied is in
proportion to the rows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.add_lora.problem import LoraProblem

FEWEST = 64  # slots; rows are multiplied by fewer than that all at once (xla.py)
SMALLEST_BLOCK, LARGEST_BLOCK = 8, 128


def suits(problem: LoraProblem) -> str | None:
    return None if problem.slots >= FEWEST else f"fewer than {FEWEST} slots"


def add_lora(y: jax.Array, x: jax.Array, a: jax.Array, b: tuple[jax.Array, ...], tokens: jax.Array) -> jax.Array:
    """See api.py."""
    rows, slots = x.shape[0], a.shape[0]
    size = _block_rows(rows, slots)
    ends, lasts = jnp.cumsum(tokens), jnp.cumsum(-(-tokens // size))  # of rows, and of blocks, up to and with each slot's
    starts, firsts = ends - tokens, lasts + -tokens // size
    block = jnp.arange(rows // size + min(rows, slots), dtype=jnp.int32)
    slot = jnp.minimum(_slots_of(block, lasts), slots - 1)
    begins = starts[slot] + (block - firsts[slot]) * size
    taken = x.at[begins[:, None] + jnp.arange(size, dtype=jnp.int32)[None]].get(mode="clip")
    shrunk = jnp.split(jnp.einsum("kni,kri->knr", taken, a[slot], preferred_element_type=x.dtype), len(b), axis=2)
    each = [
        jnp.einsum("knr,kro->kno", part, matrices[slot], preferred_element_type=jnp.float32)
        for part, matrices in zip(shrunk, b, strict=True)
    ]
    made = jnp.concatenate(each, axis=2).reshape(-1, y.shape[1])
    row = jnp.arange(rows, dtype=jnp.int32)
    own = jnp.minimum(_slots_of(row, ends), slots - 1)
    place = firsts[own] * size + row - starts[own]
    return jnp.where((row < ends[-1])[:, None], y + made.at[place].get(mode="clip"), y)


def _slots_of(places: jax.Array, ends: jax.Array) -> jax.Array:
    """The slot that each place is in, by where slots end; behind the last one their number."""
    return jnp.sum(places[:, None] >= ends[None], axis=1, dtype=jnp.int32)


def _block_rows(rows: int, slots: int) -> int:
    """Rows of a block: a slot's share of them as a power of two, within the bounds above."""
    share = min(max(rows // slots, SMALLEST_BLOCK), LARGEST_BLOCK)
    return min(1 << (share.bit_length() - 1), rows)
