"""What layers with states of fixed size ask of whoever runs them: they know no table of states, and no requests."""

from __future__ import annotations

from typing import Protocol

import jax

from pallas_kernels.gated_linear_attention import LinearOptions


class Recur(Protocol):
    """How layers with states of fixed size see a step's tokens in their sequences. `layer` counts these layers alone."""

    def convolve(self, layer: int, x: jax.Array, weight: jax.Array, bias: jax.Array | None, *, silu: bool) -> jax.Array:
        """x[T, s, C/s] after a causal convolution by weight[W, s, C/s], plus bias[s, C/s], and SiLU: [T, s, C/s]."""

    def attend(
        self,
        layer: int,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        decay: jax.Array,
        beta: jax.Array,
        options: LinearOptions,
    ) -> jax.Array:
        """Gated linear attention of q[T, K, D], k[T, K, D], v[T, H, V], decay and beta f32[T, H]: [T, H, V]."""
