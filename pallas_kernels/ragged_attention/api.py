"""ragged_attention: every token attends to all tokens of its row, those behind it too."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels import checks
from pallas_kernels.ragged_attention.implementations import IMPLEMENTATIONS
from pallas_kernels.ragged_attention.problem import RaggedProblem
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.registry import Target, choose


def ragged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    query_start: jax.Array,
    *,
    options: AttentionOptions,
    implementation: str | None = None,
    target: Target | None = None,
) -> jax.Array:
    """Attention of sequences that lie one behind the other, each over itself (variable-length attention, Dao et al. 2022).

    Axes: T tokens, R rows, H query heads, K heads of keys and values of which H is a multiple, D numbers of a head.

    Args:
        q: [T, H, D] bf16, f16 or f32.
        k, v: [T, K, D], of the same dtype.
        query_start: int32 [R+1], rising: row r is tokens query_start[r]:query_start[r+1]. Tokens behind the last row may hold
            anything, NaN included; their result is 0.
        options: a token sees those whose distance is below `window`, to either side. `value_dim` is not taken.
        implementation: a name from `implementations.py`, or None to pick by target, dtype and options.
        target: the device that the program is for; the default device unless given.

    Returns:
        [T, H, D] in q's dtype.

    Raises:
        ValueError: a shape, an option or the implementation's name is wrong, or that implementation cannot do this.
        TypeError: a dtype is not supported.
    """
    checks.require_shape("q", q, (None, None, None), "[T, H, D]")
    tokens, heads, head_dim = q.shape
    for name, array in (("k", k), ("v", v)):
        checks.require_shape(name, array, (tokens, None, head_dim), "[T, K, D]")
        checks.require_dtype(name, array, (q.dtype,))
    if 0 in (*q.shape, *k.shape) or k.shape != v.shape or heads % k.shape[1]:
        raise ValueError(f"heads of k and v must divide those of q, got q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}")
    checks.require_shape("query_start", query_start, (None,), "[R+1]")
    checks.require_dtype("q", q, checks.FLOAT_DTYPES)
    checks.require_dtype("query_start", query_start, (jnp.int32,))
    if options.value_dim is not None:
        raise ValueError("value_dim is an option of attention over pages")
    attend = choose("ragged_attention", IMPLEMENTATIONS, implementation, target, RaggedProblem(q.dtype, options))
    return attend(q, k, v, query_start, options)
