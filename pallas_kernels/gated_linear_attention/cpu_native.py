"""gated_linear_attention in C++ (native.cc): a head's state is read once a row, and its tokens come one after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import native
from pallas_kernels.gated_linear_attention.problem import NORM_EPS, LinearOptions, LinearProblem
from pallas_kernels.state_rows import StateRows

LIMITS = "bfloat16 or float32"


def supports(problem: LinearProblem) -> str | None:
    if problem.dtype not in (jnp.bfloat16, jnp.float32):
        return f"queries, keys and values must be bfloat16 or float32, not {jnp.dtype(problem.dtype).name}"
    return None


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
    instruction_set: str = "best",
) -> tuple[jax.Array, jax.Array]:
    """See api.py. A token's result does not depend on what else is in the batch, nor on how its row is cut into chunks.

    A program fails when it runs if rows point outside the arrays. `instruction_set` is as in matmul/cpu_native.py.
    """
    results = jax.ShapeDtypeStruct(v.shape, v.dtype), jax.ShapeDtypeStruct(states.shape, states.dtype)
    attend = jax.ffi.ffi_call(native.target_name("GatedLinearAttention"), results, input_output_aliases={5: 1})
    out, left = attend(
        q,
        k,
        v,
        decay,
        beta,
        states,
        rows.query_start,
        rows.source,
        rows.destination,
        rows.snapshot,
        rows.snapshot_at,
        layer=layer,
        scale=np.float32(options.scale),
        norm_eps=np.float32(NORM_EPS),
        delta=options.delta,
        l2_norm=options.l2_norm,
        instruction_set=instruction_set,
    )
    return out, left
