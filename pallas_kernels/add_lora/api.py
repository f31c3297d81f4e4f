"""add_lora: rows sorted by adapter, to whose products their own adapters' are added."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pallas_kernels import checks
from pallas_kernels.add_lora.implementations import IMPLEMENTATIONS
from pallas_kernels.add_lora.problem import LoraProblem
from pallas_kernels.registry import Target, choose


def add_lora(
    y: jax.Array,
    x: jax.Array,
    a: jax.Array,
    b: Sequence[jax.Array],
    tokens: jax.Array,
    *,
    implementation: str | None = None,
    target: Target | None = None,
) -> jax.Array:
    """Add (x A) B to y, with A and B of each row's adapter (LoRA, Hu et al. 2021; many in a batch: Punica, Chen et al. 2023).

    Axes: N rows, I their width, S slots of adapters, P matrices side by side that read the same rows, R the rank, O_p outputs of
    one of them, O of all. Slot 0 has the first `tokens[0]` rows, slot 1 the next ones, and so on. Rows behind the last slot's
    have no adapter: their y stays as it is, and x may hold anything, NaN included.

    Args:
        y: float32 [N, O], in whose place the result may be written.
        x: [N, I] bf16, f16 or f32.
        a: [S, P*R, I], of the dtype of x. What comes of it is rounded to that dtype.
        b: for each of the P matrices [S, R, O_p], likewise.
        tokens: int32 [S], none below 0, N in sum at most: the operation itself does not verify that.
        implementation: a name from `implementations.py`, or None to pick by target, shapes and dtypes.
        target: the device that the program is for; the default device unless given.

    Returns:
        float32 [N, O].

    Raises:
        ValueError: a shape or the implementation's name is wrong, or that implementation cannot do this.
        TypeError: a dtype is not supported.
    """
    checks.require_shape("x", x, (None, None), "[N, I]")
    checks.require_shape("a", a, (None, None, x.shape[1]), "[S, P*R, I]")
    if not b or a.shape[1] % len(b):
        raise ValueError(f"b must be as many matrices as a is of, got {len(b)} and a {list(a.shape)}")
    for place, matrix in enumerate(b):
        checks.require_shape(f"b[{place}]", matrix, (a.shape[0], a.shape[1] // len(b), None), "[S, R, O_p]")
    checks.require_shape("y", y, (x.shape[0], sum(matrix.shape[2] for matrix in b)), "[N, O]")
    checks.require_shape("tokens", tokens, (a.shape[0],), "[S]")
    if 0 in (*x.shape, *a.shape, *(matrix.shape[2] for matrix in b)):
        raise ValueError(f"no axis may be empty, got x {list(x.shape)}, a {list(a.shape)}, b {[list(one.shape) for one in b]}")
    checks.require_dtype("x", x, checks.FLOAT_DTYPES)
    checks.require_dtype("y", y, (jnp.float32,))
    checks.require_dtype("tokens", tokens, (jnp.int32,))
    for name, matrix in (("a", a), *((f"b[{place}]", matrix) for place, matrix in enumerate(b))):
        checks.require_dtype(name, matrix, (x.dtype,))
    add = choose("add_lora", IMPLEMENTATIONS, implementation, target, LoraProblem(x.dtype, a.shape[0]))
    return add(y, x, a, tuple(b), tokens)
