"""grouped_matmul: rows sorted by group, each multiplied by the matrix of its group."""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import checks, hopper
from pallas_kernels.grouped_matmul import mosaic_gpu_support
from pallas_kernels.grouped_matmul.implementations import IMPLEMENTATIONS
from pallas_kernels.grouped_matmul.problem import GroupedProblem
from pallas_kernels.matmul import Matrix, Weight, Words
from pallas_kernels.quantization import Axes, Float8Weight, FourBit, Scheme
from pallas_kernels.registry import Target, choose


def grouped_matmul(
    x: jax.Array,
    weights: Weight,
    group_sizes: jax.Array,
    *,
    dtype: Any = jnp.float32,
    expected_rows: int | None = None,
    implementation: str | None = None,
    target: Target | None = None,
) -> jax.Array:
    """Multiply the rows of group after group by the group's matrix; work is in proportion to the rows that have a group.

    Axes: N rows, I their width, O the result's width, X groups (experts). Group 0 has the first `group_sizes[0]` rows, group 1
    the next ones, and so on. Rows behind the last group's belong to nobody: they may hold anything, NaN included, and their
    result is 0. So a device that has some of the experts puts their rows first, in arrays of any length.

    Args:
        x: [N, I] bf16, f16 or f32.
        weights: [X, I, O], of the dtype of `x`, or a stacked Matrix of as many matrices and inputs.
        group_sizes: int32 [X], none below 0, N in sum at most: `check_inputs` verifies that on concrete arrays, the operation
            itself does not.
        dtype: of the result: bf16, f16 or f32. Sums are in float32 whatever it is.
        expected_rows: how many rows are likely to have a group, N unless given. The sizes of blocks are chosen by it; the result
            does not depend on it.
        implementation: a name from `implementations.py`, or None to pick by target, shapes and dtypes.
        target: the device that the program is for; unless given, a CPU for layouts of native kernels, a Hopper for words, else
            the default device.

    Returns:
        [N, O] of `dtype`.

    Raises:
        ValueError: a shape or the implementation's name is wrong, or that implementation cannot do this.
        TypeError: a dtype is not supported.
    """
    checks.require_shape("x", x, (None, None), "[N, I]")
    _check_shape(x, weights)
    checks.require_shape("group_sizes", group_sizes, (weights.shape[0],), "[X]")
    if 0 in (*x.shape, *weights.shape):
        raise ValueError(f"no axis may be empty, got x {list(x.shape)} and weights {list(weights.shape)}")
    checks.require_dtype("x", x, checks.FLOAT_DTYPES)
    checks.require_dtype("group_sizes", group_sizes, (jnp.int32,))
    expected = weights.layout.arranged_dtype(weights.scheme.value_dtype(x.dtype)) if isinstance(weights, Matrix) else x.dtype
    if weights.dtype != expected:
        raise TypeError(f"weights must be {expected.name} like x, got {weights.dtype.name}")
    dtype = jnp.dtype(dtype)
    if dtype not in [jnp.dtype(allowed) for allowed in checks.FLOAT_DTYPES]:
        raise TypeError(f"dtype must be bfloat16 or float16 or float32, got {dtype.name}")
    likely = x.shape[0] if expected_rows is None else expected_rows
    if not 0 <= likely <= x.shape[0]:
        raise ValueError(f"expected_rows must be between 0 and {x.shape[0]}, got {likely}")
    problem = GroupedProblem.of(x, weights, dtype, likely)
    if target is None and isinstance(weights, Matrix) and weights.layout.native:
        target = Target("cpu")
    elif target is None and implementation is None and isinstance(weights, Matrix):
        target = Target("gpu", hopper.CAPABILITY)
    multiply = choose("grouped_matmul", IMPLEMENTATIONS, implementation, target, problem)
    return multiply(x, weights, group_sizes, dtype=dtype, expected_rows=likely)


def why_not_words(shape: tuple[int, ...], inputs: Axes, dtype: jnp.dtype, scheme: Scheme, target: Target) -> str | None:
    """Say why numbers of a stack of matrices are better not put into words for a device, or None if they are better in words.

    `inputs` are dimensions of one matrix.
    """
    if inputs != tuple(range(len(inputs))):
        return "the first dimensions must be inputs"
    count, one = prod(shape[1 : 1 + len(inputs)]), prod(shape[1:])
    codes = scheme if isinstance(scheme, FourBit | Float8Weight) else None
    problem = GroupedProblem(1, shape[0], count, one // count, dtype, dtype, 1, Words.name, scheme.name, codes)
    return hopper.runs_on(target) or mosaic_gpu_support.supports(problem)


def _check_shape(x: jax.Array, weights: Weight) -> None:
    if not isinstance(weights, Matrix):
        checks.require_shape("weights", weights, (None, x.shape[1], None), "[X, I, O]")
    elif not weights.stacked:
        raise ValueError("weights are one matrix, not a stack of them")
    elif weights.inputs != x.shape[1]:
        raise ValueError(f"the weights have {weights.inputs} inputs, and x {list(x.shape)} has {x.shape[1]}")


def check_inputs(rows: int, group_sizes: np.ndarray) -> None:
    """Check the values that tracing cannot see, on a concrete array, for `rows` rows.

    Raises:
        ValueError: a group's size is negative, or the groups have more rows than there are.
    """
    sizes = np.asarray(group_sizes)
    if (sizes < 0).any():
        raise ValueError(f"group_sizes must not be negative, got {int(sizes.min())}")
    if sizes.sum() > rows:
        raise ValueError(f"group_sizes must be {rows} in sum at most, got {int(sizes.sum())}")
