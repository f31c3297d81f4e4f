"""round_rows: rows in E4M3 with a step each, as FP8 products take them; and the same of what a norm or a gate makes.

A row's largest magnitude is 448 of its steps. Rows are rounded to their own dtype first, which makes the result the same
wherever it is computed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels import checks
from pallas_kernels.registry import Target, choose
from pallas_kernels.round_rows.implementations import GATED, NORMED, ROWS
from pallas_kernels.round_rows.problem import Activation, Gate, Norm, RoundProblem
from pallas_kernels.round_rows.rounded import Rounded


def round_rows(x: jax.Array, *, implementation: str | None = None, target: Target | None = None) -> Rounded:
    """Round rows x[T, ..., I], bf16, f16 or f32; numbers of the last dimension have one step.

    Args:
        x: the rows. A row with a number that is NaN or infinite has NaN in its products, and the others are as without it.
        implementation: a name from `implementations.py`, or None to pick by target, shapes and dtypes.
        target: the device that the program is for; the default device unless given.

    Raises:
        ValueError: a shape or the implementation's name is wrong, or that implementation cannot do this.
        TypeError: a dtype is not supported.
    """
    checks.require_dtype("x", x, checks.FLOAT_DTYPES)
    if x.ndim < 2 or 0 in x.shape:
        raise ValueError(f"x must be rows [T, ..., I], none of them empty, got {list(x.shape)}")
    run = choose("round_rows", ROWS, implementation, target, RoundProblem(x.shape[-1], x.dtype))
    values, steps = run(x.reshape(x.shape[0], -1, x.shape[-1]))
    return Rounded(values.reshape(-1, *x.shape[1:]), steps.reshape(x.shape[:-1]), x.dtype)


def round_normed(
    x: jax.Array,
    added: jax.Array | None,
    scale: jax.Array,
    *,
    norm: Norm,
    implementation: str | None = None,
    target: Target | None = None,
) -> tuple[jax.Array, Rounded]:
    """Add to the residual stream, normalise, and round.

    Args:
        x: [T, E], see `round_rows`.
        added: likewise; None for nothing.
        scale: [E], of the dtype of x.
        norm: the norm's constants.
        implementation, target: see `round_rows`.

    Returns:
        x + added, in their dtype, and the rounded norm of that.
    """
    checks.require_dtype("x", x, checks.FLOAT_DTYPES)
    checks.require_shape("x", x, (None, None), "[T, E]")
    checks.require_shape("scale", scale, x.shape[1:], "[E]")
    if added is not None:
        checks.require_shape("added", added, x.shape, "[T, E]")
        checks.require_dtype("added", added, (x.dtype,))
    run = choose("round_normed", NORMED, implementation, target, RoundProblem(x.shape[-1], x.dtype))
    total, (values, steps) = run(x, added, scale, norm=norm)
    return total, Rounded(values, steps, x.dtype)


def round_gated(
    sums: jax.Array,
    gate: Gate,
    *,
    activation: Activation,
    dtype: jnp.dtype,
    implementation: str | None = None,
    target: Target | None = None,
) -> Rounded:
    """Scale the product that is gate and up, apply the activation in float32, and round.

    Args:
        sums: [T, s, 2F], products of E4M3 numbers: for each shard its gate's columns, then those that are gated.
        gate: what they are multiplied by.
        activation: of gate and up.
        dtype: of the rows that are rounded.
        implementation, target: see `round_rows`.

    Returns:
        Rows [T, s, F].
    """
    checks.require_dtype("sums", sums, checks.FLOAT_DTYPES)
    checks.require_shape("sums", sums, (None, None, None), "[T, s, 2F]")
    if sums.shape[-1] % 2:
        raise ValueError(f"sums must be as many of gate as of up, got {list(sums.shape)}")
    checks.require_shape("gate.steps", gate.steps, sums.shape[:1], "[T]")
    checks.require_shape("gate.scales", gate.scales, sums.shape[1:], "[s, 2F]")
    run = choose("round_gated", GATED, implementation, target, RoundProblem(sums.shape[-1] // 2, dtype))
    values, steps = run(sums, gate, activation=activation, dtype=dtype)
    return Rounded(values, steps, dtype)
