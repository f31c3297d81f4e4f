"""Recurrent layers without a table of states, for whoever runs a decoder over one whole sequence."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.causal_conv1d import causal_conv1d
from pallas_kernels.gated_linear_attention import LinearOptions, gated_linear_attention
from pallas_kernels.state_rows import StateRows


class DenseRecur:
    """The Recur of one sequence from its beginning."""

    def convolve(self, layer: int, x: jax.Array, weight: jax.Array, bias: jax.Array | None, *, silu: bool) -> jax.Array:
        """x[T, s, C/s] -> [T, s, C/s]."""
        tokens, width = x.shape[0], weight.shape[0]
        channels, flat_bias = x.reshape(tokens, -1), None if bias is None else bias.reshape(-1)
        empty = jnp.zeros((1, 1, width - 1, channels.shape[1]), x.dtype)
        out, _ = causal_conv1d(channels, weight.reshape(width, -1), flat_bias, empty, _one_row(tokens), layer=0, silu=silu)
        return out.reshape(x.shape)

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
        """q[T, K, D], k[T, K, D], v[T, H, V], decay and beta f32[T, H] -> [T, H, V]."""
        empty = jnp.zeros((1, 1, v.shape[1], k.shape[2], v.shape[2]), jnp.float32)
        return gated_linear_attention(q, k, v, decay, beta, empty, _one_row(v.shape[0]), layer=0, options=options)[0]


dense_recur = DenseRecur()


def _one_row(tokens: int) -> StateRows:
    """All tokens, from place 0 of one, whose state nobody wants."""
    nothing = jnp.zeros(1, jnp.int32)
    starts = jnp.array([0, tokens], jnp.int32)
    return StateRows(starts, jnp.zeros(tokens, jnp.int32), nothing, nothing[:, None] + 1, nothing, nothing)
