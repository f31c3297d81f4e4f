"""How a part of a model declares a parameter, and how projections multiply by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.adapted import Adapted
from pallas_kernels.matmul import Matrix, Weight, as_matrix, matmul, unscaled
from pallas_kernels.quantization import FP8, Axes
from pallas_kernels.round_rows import Activation, Gate, Rounded, round_gated

Parameter = nnx.Param[jax.Array]
"""Its value is an array, or a Matrix where `declare` was told of a product and `weights.packed` chose so; nothing here asks.

In a step that has adapters a projection's is Adapted.
"""
Projected = jax.Array | Rounded
"""Rows that are multiplied by matrices: rounded already where all of these are of the scheme that rounds them."""


class Product(NamedTuple):
    """How a parameter is the matrix of a product.

    Attributes:
        inputs: its dimensions that are inputs.
        looked_up: whether its rows are also taken one by one.
        logits: whether its results are logits.
        stacked: whether it is one matrix after the other along a first dimension, which grouped matmuls multiply by; `inputs`
            are then dimensions of one.
        exact: whether it stays in the dtype of the activations, whatever others are rounded to.
    """

    inputs: Axes
    looked_up: bool = False
    logits: bool = False
    stacked: bool = False
    exact: bool = False

    def one(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one matrix, of a parameter's."""
        return shape[1:] if self.stacked else shape

    def matrix(self, parameter: Parameter) -> Matrix:
        return as_matrix(unadapted(parameter), self.inputs)


COLUMNS = Product((0,))
"""Of `project_columns`."""
FED = Product((0,))
"""Of hidden states that a draft head is fed."""
HEAD = Product((0,), logits=True)
ROWS = Product((0, 1))
"""Of `project_rows`."""
ROUTER = Product((0,), exact=True)
"""Of what says which experts a token visits, and how much one counts: few numbers, of which each matters."""
GATES = Product((0,), exact=True)
"""Of what says how fast a recurrent state fades, and how much of a token is written to it: likewise."""
TABLE = Product((1,), looked_up=True, logits=True)
"""Of logits from the embedding table."""
EXPERT_COLUMNS, EXPERT_ROWS = Product((0,), stacked=True), Product((0, 1), stacked=True)
"""Of the two projections of routed experts."""


def declare(shape: tuple[int, ...], axes: tuple[str | None, ...], dtype: jnp.dtype, product: Product | None = None) -> Parameter:
    """A parameter with its logical axes (see `sharding.specs`).

    Modules are only ever built abstractly (`binding._split_skeleton`), so the zeros are never allocated.

    Args:
        shape: dimensions.
        axes: the logical axis of each dimension; None for one that is never divided.
        dtype: of the values.
        product: if it is only used as that product's matrix.
    """
    if len(shape) != len(axes):
        raise ValueError(f"shape {shape} and logical axes {axes} differ in length")
    return nnx.Param(jnp.zeros(shape, dtype), axes=axes, product=product)


def unadapted(parameter: Parameter) -> Weight:
    """Its value without the adapters beside it."""
    value: Weight | Adapted = parameter.get_value()
    return value.weight if isinstance(value, Adapted) else value


def rounding(kernels: Sequence[Parameter]) -> FP8 | None:
    """The scheme of matrices that all multiply rounded rows; None if one of them does not, as one with adapters."""
    weights: list[Weight | Adapted] = [kernel.get_value() for kernel in kernels]
    schemes = [weight.scheme if isinstance(weight, Matrix) else None for weight in weights]
    first = schemes[0]
    return first if isinstance(first, FP8) and all(scheme == first for scheme in schemes) else None


def project_columns(x: Projected, kernel: Parameter, bias: Parameter | None, *, rounded: bool = True) -> jax.Array:
    """x[T, E] times a matrix packed by columns [E, s, X], plus a bias [s, X]: [T, s, X] in x's dtype.

    The sum is in float32: exact enough to match any reference, and the only form that XLA's CPU matmuls run on bf16
    weights without converting them first. On GPUs the product itself adds the bias and writes x's dtype. Not `rounded`: the
    result may be in float32, for the few operations before the next product; see `Matrix.elementwise_dtype`.
    """
    matrix = COLUMNS.matrix(kernel)
    y = _rounded_on_gpus(x, matrix, None if bias is None else bias[...])
    adapted = kernel.get_value()
    if isinstance(adapted, Adapted):
        y = adapted.columns(y, _unrounded(x))
    return y.astype(x.dtype if rounded else matrix.elementwise_dtype(x.dtype))


def project_gated(x: Rounded, kernel: Parameter, activation: Activation) -> Rounded:
    """The activation of gate and up, x[T, E] times a matrix [E, s, 2F/s]: [T, s, F/s], rounded for the next product.

    What is read of the product is scaled, gated and rounded at once.
    """
    matrix = COLUMNS.matrix(kernel)
    scheme = rounding((kernel,))
    target = None if scheme is None else scheme.target
    gate = Gate(x.steps, matrix.scales)
    return round_gated(unscaled(x, matrix), gate, activation=activation, dtype=x.dtype, target=target)


def project_rows(x: Projected, kernel: Parameter, bias: Parameter | None) -> jax.Array:
    """x[T, s, X] times a matrix packed by rows [s, X, E], plus a bias [E]: [T, E] in x's dtype.

    Each device sums in float32. Over several devices the sum over s is the layer's all-reduce; on GPUs its terms are rounded
    to x's dtype first, as in other engines, which halves what the devices exchange.
    """
    y = _rounded_on_gpus(x, ROWS.matrix(kernel), None)
    adapted = kernel.get_value()
    if isinstance(adapted, Adapted):
        y = adapted.rows(y, _unrounded(x))
    if bias is not None:
        y += bias[...].astype(jnp.float32)[None]
    return y.astype(x.dtype)


def _unrounded(x: Projected) -> jax.Array:
    assert not isinstance(x, Rounded), "rows are rounded for matrices without adapters alone"
    return x


def _rounded_on_gpus(x: Projected, matrix: Matrix, bias: jax.Array | None) -> jax.Array:
    """The product in float32, plus a bias if any; on GPUs rounded to x's dtype before it is written.

    The sum of rounded terms is what cuBLASLt's product with a bias is found by. That adds in float32, and rounds once.
    """

    def exact(x: Projected, matrix: Matrix, bias: jax.Array | None) -> jax.Array:
        y = matmul(x, matrix)
        return y if bias is None else y + bias.astype(jnp.float32)[None]

    def rounded(x: Projected, matrix: Matrix, bias: jax.Array | None) -> jax.Array:
        y = matmul(x, matrix, summed=x.dtype)
        return y if bias is None else (y.astype(x.dtype) + bias.astype(x.dtype)[None]).astype(jnp.float32)

    y: jax.Array = jax.lax.platform_dependent(x, matrix, bias, cuda=rounded, default=exact)
    return y
