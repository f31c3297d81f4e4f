"""How a part of a model declares a parameter, and how projections multiply by one."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from pallas_kernels.matmul import PackedMatrix, matmul
from pallas_kernels.matmul.packed import Form

Parameter = nnx.Param[jax.Array]
"""Its value may be a PackedMatrix instead where `declare` was told of a product; see `weights.packed`."""


class Product(NamedTuple):
    """How a parameter is the matrix of a product, and so how it may be packed: see `PackedMatrix`."""

    split: int
    form: Form


COLUMNS = Product(1, "panels")
"""Of `project_columns`, and of the head."""
ROWS = Product(2, "panels")
"""Of `project_rows`."""
TABLE = Product(1, "rows")
"""Of logits from the embedding table, which is looked up too."""


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


def project_columns(x: jax.Array, kernel: Parameter, bias: Parameter | None, *, rounded: bool = True) -> jax.Array:
    """x[T, E] times a matrix packed by columns [E, s, X], plus a bias [s, X]: [T, s, X] in x's dtype.

    The sum is in float32: exact enough to match any reference, and the only form that XLA's CPU matmuls run on bf16
    weights without converting them first. Not `rounded`: from a packed matrix the result is in float32, for the few
    operations before the next product. XLA's CPU code for them takes half as long where it need not round after each.
    """
    matrix: jax.Array | PackedMatrix = kernel.get_value()
    y = multiply_columns(x, matrix)
    if bias is not None:
        y += bias[...].astype(jnp.float32)[None]
    return y.astype(x.dtype) if rounded or not isinstance(matrix, PackedMatrix) else y


def project_rows(x: jax.Array, kernel: Parameter, bias: Parameter | None) -> jax.Array:
    """x[T, s, X] times a matrix packed by rows [s, X, E], plus a bias [E]: [T, E] in x's dtype.

    Each device sums in float32. Over several devices the sum over s is the layer's all-reduce; on GPUs its terms are rounded
    to x's dtype first, as in other engines, which halves what the devices exchange.
    """
    matrix: jax.Array | PackedMatrix = kernel.get_value()
    if isinstance(matrix, PackedMatrix):
        y = multiply_rows(x, matrix)
    else:
        rounded, wide = partial(_sum_rows, x.dtype), partial(_sum_rows, jnp.float32)
        y = jax.lax.platform_dependent(x, matrix, cuda=rounded, default=wide)
    if bias is not None:
        y += bias[...].astype(jnp.float32)[None]
    return y.astype(x.dtype)


def multiply_columns(x: jax.Array, matrix: jax.Array | PackedMatrix) -> jax.Array:
    """x[T, E] times a matrix [E, s, X], plain or packed: float32[T, s, X]."""
    if isinstance(matrix, PackedMatrix):
        return matmul(x, matrix).reshape(x.shape[0], *matrix.shape[1:])
    return jnp.einsum("te,esx->tsx", x, matrix, preferred_element_type=jnp.float32)


def multiply_rows(x: jax.Array, matrix: jax.Array | PackedMatrix) -> jax.Array:
    """x[T, s, X] times a matrix [s, X, E], plain or packed: float32[T, E]."""
    if isinstance(matrix, PackedMatrix):
        return matmul(x.reshape(x.shape[0], -1), matrix)
    return jnp.einsum("tsx,sxe->te", x, matrix, preferred_element_type=jnp.float32)


def _sum_rows(exchanged: jnp.dtype, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """float32[T, E], the devices' terms having been rounded to `exchanged`."""
    return jnp.einsum("tsx,sxe->te", x, kernel, preferred_element_type=exchanged).astype(jnp.float32)
