"""matmul: activations times a weight matrix, whatever its numbers and its layout are."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp

from pallas_kernels import checks, hopper, native
from pallas_kernels.matmul import cpu_native, mosaic_gpu_support, xla
from pallas_kernels.matmul.implementations import IMPLEMENTATIONS
from pallas_kernels.matmul.matrix import Weight, as_matrix
from pallas_kernels.matmul.problem import MatmulProblem
from pallas_kernels.matmul.words import Words
from pallas_kernels.quantization import Axes, Float8Weight, FourBit, Scheme
from pallas_kernels.registry import Target, choose
from pallas_kernels.round_rows import Rounded


def matmul(
    x: jax.Array | Rounded,
    matrix: Weight,
    *,
    summed: jnp.dtype | None = None,
    implementation: str | None = None,
    target: Target | None = None,
) -> jax.Array:
    """Multiply rows by a matrix, with sums in float32.

    Axes: T rows, I inputs, O outputs; either may be several dimensions, as the matrix has them.

    Args:
        x: [T, I] bf16, f16 or f32, or Rounded as FP8 rounds them. Rows after `matrix.used_rows` may hold anything, NaN included.
        matrix: [I, O], or a Matrix with as many inputs; of the dtype of `x`, or quantized. Its `used_rows`, if it has them, are
            at most T.
        summed: what a device's sums are rounded to before others' are added; None for float32. Native kernels' are never added.
        implementation: a name from `implementations.py`, or None to pick by target, shapes and dtypes.
        target: the device that the program is for; unless given, a CPU for a layout of native kernels, a Hopper for words, else
            the default device.

    Returns:
        float32 [T, O]; 0 in the rows after `matrix.used_rows`.

    Raises:
        ValueError: a shape or the implementation's name is wrong, or that implementation cannot do this.
        TypeError: a dtype is not supported.
    """
    matrix = as_matrix(matrix)
    if matrix.stacked:
        raise ValueError("the matrix is a stack of them, which grouped_matmul multiplies by")
    problem = MatmulProblem.of(x, matrix)
    if x.size != problem.rows * problem.inputs:
        raise ValueError(f"the matrix has {problem.inputs} inputs, and x {list(x.shape)} has {x.size // max(problem.rows, 1)}")
    if 0 in (problem.rows, problem.inputs, problem.outputs):
        raise ValueError(f"no axis may be empty, got x {list(x.shape)} and {problem.outputs} outputs")
    checks.require_dtype("x", x, checks.FLOAT_DTYPES)
    expected = matrix.layout.arranged_dtype(matrix.scheme.value_dtype(x.dtype))
    if matrix.dtype != expected:
        raise TypeError(f"the matrix must be {expected.name} like x, got {matrix.dtype.name}")
    if matrix.layout.name == "plain" and implementation is None:
        return xla.matmul(x, matrix, summed)  # alone reads what lies plain
    if target is None and matrix.layout.native:
        target = Target("cpu")
    elif target is None and implementation is None and isinstance(matrix.layout, Words):
        target = Target("gpu", hopper.CAPABILITY)
    multiply = choose("matmul", IMPLEMENTATIONS, implementation, target, problem)
    return multiply(x, matrix) if matrix.layout.native else multiply(x, matrix, summed)


def why_not_words(shape: tuple[int, ...], inputs: Axes, dtype: jnp.dtype, scheme: Scheme, target: Target) -> str | None:
    """Say why a parameter's numbers are better not put into words for a device, or None if they are better in words."""
    if inputs != tuple(range(len(inputs))):
        return "the first dimensions must be inputs"
    count = prod(shape[: len(inputs)])
    codes = scheme if isinstance(scheme, FourBit | Float8Weight) else None
    problem = MatmulProblem(1, count, prod(shape) // count, dtype, Words.name, scheme.name, codes)
    return hopper.runs_on(target) or mosaic_gpu_support.supports(problem)


def why_plain(dtype: jnp.dtype, target: Target, scheme: str = "none") -> str | None:
    """Say why matrices of a dtype are better not packed for a device, or None if they are better packed."""
    problem = MatmulProblem(
        rows=1, inputs=1, outputs=1, dtype=dtype, layout="code panels" if scheme == "int4" else "panels", scheme=scheme
    )
    return native.runs_on(target) or cpu_native.supports(problem)
