"""What the heads of latent attention make of latents: given to an Attend, which may make their keys and values."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class LatentHeads(NamedTuple):
    """A layer's heads, and the step's queries as they are for keys of the heads' own.

    Attributes:
        q: [T, H, N + X], of which the last X are rotated.
        key_up, value_up: [H, N, C] and [H, V, C], from a latent to each head's key, but for its rotated numbers, and value.
    """

    q: jax.Array
    key_up: jax.Array
    value_up: jax.Array

    def absorbed(self) -> jax.Array:
        """Queries for the latents themselves: [T, H, C + X]."""
        nope, rotated = jnp.split(self.q, (self.key_up.shape[1],), axis=2)
        # Orders of operands and results that let XLA's CPU matmuls read the matrices as they lie.
        absorbed = jnp.einsum("thn,hnc->htc", nope, self.key_up, preferred_element_type=jnp.float32)
        return jnp.concatenate([absorbed.swapaxes(0, 1).astype(self.q.dtype), rotated], axis=2)

    def values(self, attended: jax.Array) -> jax.Array:
        """Values [T, H, V] of attended [T, H, C]: sums of latents."""
        values = jnp.einsum("hvc,thc->hvt", self.value_up, attended, preferred_element_type=jnp.float32)
        return values.astype(self.q.dtype).transpose(2, 0, 1)
