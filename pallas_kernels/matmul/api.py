"""matmul: activations times a weight matrix, plain or packed."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels import checks, native
from pallas_kernels.matmul import cpu_native
from pallas_kernels.matmul.implementations import IMPLEMENTATIONS
from pallas_kernels.matmul.packed import PackedMatrix
from pallas_kernels.matmul.problem import MatmulProblem
from pallas_kernels.registry import Target, choose


def matmul(
    x: jax.Array, matrix: jax.Array | PackedMatrix, *, implementation: str | None = None, target: Target | None = None
) -> jax.Array:
    """Multiply rows by a matrix, with sums in float32.

    Axes: T rows, I inputs, O outputs.

    Args:
        x: [T, I] bf16, f16 or f32. Rows after `matrix.used_rows` may hold anything, NaN included.
        matrix: [I, O], or packed with as many inputs; of the dtype of `x`, or quantized. Its `used_rows`, if it has them, are at
            most T.
        implementation: a name from `implementations.py`, or None to pick by target, shapes and dtypes.
        target: the device that the program is for; unless given, a CPU for a packed matrix, else the default device.

    Returns:
        float32 [T, O]; 0 in the rows after `matrix.used_rows`.

    Raises:
        ValueError: a shape or the implementation's name is wrong, or that implementation cannot do this.
        TypeError: a dtype is not supported.
    """
    checks.require_shape("x", x, (None, None), "[T, I]")
    packed = isinstance(matrix, PackedMatrix)
    if not isinstance(matrix, PackedMatrix):
        checks.require_shape("matrix", matrix, (x.shape[1], None), "[I, O]")
    elif matrix.inputs != x.shape[1]:
        raise ValueError(f"the matrix has {matrix.inputs} inputs, and x {list(x.shape)} has {x.shape[1]}")
    problem = MatmulProblem.of(x, matrix)
    if 0 in (problem.rows, problem.inputs, problem.outputs):
        raise ValueError(f"no axis may be empty, got x {list(x.shape)} and {problem.outputs} outputs")
    checks.require_dtype("x", x, checks.FLOAT_DTYPES)
    if matrix.dtype != x.dtype and not problem.quantized:
        raise TypeError(f"the matrix must be {x.dtype.name} like x, got {matrix.dtype.name}")
    if target is None and packed:
        target = Target("cpu")
    return choose("matmul", IMPLEMENTATIONS, implementation, target, problem)(x, matrix)


def why_plain(dtype: jnp.dtype, target: Target) -> str | None:
    """Say why matrices of a dtype are better not packed for a device, or None if they are better packed."""
    problem = MatmulProblem(rows=1, inputs=1, outputs=1, dtype=dtype, form="panels")
    return native.runs_on(target) or cpu_native.supports(problem)
