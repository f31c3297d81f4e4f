"""gated_linear_attention: attention whose memory of a sequence is a matrix a head, which every token makes fade and adds to."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels import checks
from pallas_kernels.gated_linear_attention.implementations import IMPLEMENTATIONS
from pallas_kernels.gated_linear_attention.problem import LinearOptions, LinearProblem
from pallas_kernels.registry import Target, choose
from pallas_kernels.state_rows import StateRows, require_layer, require_rows


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
    implementation: str | None = None,
    target: Target | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Linear attention with a gate, token after token of a row.

        S = exp(decay) S;  S += beta k (v - k S)^T with the delta rule, else S += beta k v^T;  o = scale q S

    With `options.delta` it is the gated delta rule (Yang, Kautz and Hatamizadeh 2024), without it the state space of Mamba-2
    (Dao and Gu 2024), whose q, k and v are its C, B and x, and whose beta is the size of a step.

    Axes: T tokens, R rows, K heads of queries and keys, H heads of values, D numbers of a key, V of a value, L layers, N places.

    Args:
        q, k: [T, K, D] bf16, f16 or f32; value head h is read and written by head h // (H / K).
        v: [T, H, V], of the same dtype.
        decay: f32 [T, H], logarithms, at most 0.
        beta: f32 [T, H].
        states: f32 [L, N, H, D, V].
        rows: where they are, and go to.
        layer: of `states`.
        options: which recurrence.
        implementation: a name from `implementations.py`, or None to pick by target, dtype and shape.
        target: the device that the program is for; the default device unless given.

    Returns:
        [T, H, V] in v's dtype, computed in float32, and the states with what rows left there. Of tokens behind the last row the
        result may be anything.

    Raises:
        ValueError: a shape, the layer or the implementation's name is wrong, or that implementation cannot do this.
        TypeError: a dtype is not supported.
    """
    checks.require_shape("q", q, (None, None, None), "[T, K, D]")
    checks.require_dtype("q", q, checks.FLOAT_DTYPES)
    tokens, key_heads, key_dim = q.shape
    checks.require_shape("k", k, (tokens, key_heads, key_dim), "[T, K, D]")
    checks.require_shape("v", v, (tokens, None, None), "[T, H, V]")
    _, heads, value_dim = v.shape
    for name, array in (("k", k), ("v", v)):
        checks.require_dtype(name, array, (q.dtype,))
    for name, array in (("decay", decay), ("beta", beta)):
        checks.require_shape(name, array, (tokens, heads), "[T, H]")
    checks.require_shape("states", states, (None, None, heads, key_dim, value_dim), "[L, N, H, D, V]")
    for name, array in (("decay", decay), ("beta", beta), ("states", states)):
        checks.require_dtype(name, array, (jnp.float32,))
    if 0 in (*q.shape, *v.shape) or heads % key_heads:
        raise ValueError(f"heads of v must be a multiple of those of q and k, got q {list(q.shape)}, v {list(v.shape)}")
    require_rows(rows, tokens)
    require_layer(states, layer)
    problem = LinearProblem(q.dtype, tokens, rows.source.shape[0], key_heads, heads, key_dim, value_dim, options)
    attend = choose("gated_linear_attention", IMPLEMENTATIONS, implementation, target, problem)
    return attend(q, k, v, decay, beta, states, rows, layer=layer, options=options)
