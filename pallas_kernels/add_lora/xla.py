"""add_lora in plain XLA: rows times the matrices of all slots; what belongs to others is left out between A and B.

Ranks are too small for grouped kernels of GPUs, and with few slots what is multiplied in vain is little beside what is read: each
matrix once. For many see xla_blocks.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def add_lora(y: jax.Array, x: jax.Array, a: jax.Array, b: tuple[jax.Array, ...], tokens: jax.Array) -> jax.Array:
    """See api.py."""
    every = jnp.einsum("ni,sri->nsr", x, a, preferred_element_type=x.dtype)
    ends = jnp.cumsum(tokens)[None]
    place = jnp.arange(x.shape[0], dtype=jnp.int32)[:, None]
    mine = (place >= ends - tokens[None]) & (place < ends)
    shrunk = jnp.split(jnp.where(mine[:, :, None], every, jnp.zeros((), x.dtype)), len(b), axis=2)
    each = [_expanded(one, matrices) for one, matrices in zip(shrunk, b, strict=True)]
    return y + (each[0] if len(b) == 1 else jnp.concatenate(each, axis=1))


def _expanded(shrunk: jax.Array, b: jax.Array) -> jax.Array:
    """[N, S, R] times [S, R, O]: float32 [N, O]."""
    rank = b.shape[0] * b.shape[1]
    product: jax.Array = jnp.matmul(shrunk.reshape(-1, rank), b.reshape(rank, -1), preferred_element_type=jnp.float32)
    return product
