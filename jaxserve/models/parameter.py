"""How a part of a model declares a parameter, and how projections multiply by one."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

Parameter = nnx.Param[jax.Array]


def declare(shape: tuple[int, ...], axes: tuple[str | None, ...], dtype: jnp.dtype) -> Parameter:
    """A parameter with its logical axes (see `sharding.specs`).

    Modules are only ever built abstractly (`binding._split_skeleton`), so the zeros are never allocated.

    Args:
        shape: dimensions.
        axes: the logical axis of each dimension; None for one that is never divided.
        dtype: of the values.
    """
    if len(shape) != len(axes):
        raise ValueError(f"shape {shape} and logical axes {axes} differ in length")
    return nnx.Param(jnp.zeros(shape, dtype), axes=axes)


def project_columns(x: jax.Array, kernel: Parameter, bias: Parameter | None) -> jax.Array:
    """x[T, E] times a matrix packed by columns [E, s, X], plus a bias [s, X]: [T, s, X] in x's dtype.

    The sum is in float32: exact enough to match any reference, and the only form that XLA's CPU matmuls run on bf16
    weights without converting them first.
    """
    y = jnp.einsum("te,esx->tsx", x, kernel[...], preferred_element_type=jnp.float32)
    if bias is not None:
        y += bias[...].astype(jnp.float32)[None]
    return y.astype(x.dtype)


def project_rows(x: jax.Array, kernel: Parameter, bias: Parameter | None) -> jax.Array:
    """x[T, s, X] times a matrix packed by rows [s, X, E], plus a bias [E]: [T, E] in x's dtype.

    Each device sums in float32. Over several devices the sum over s is the layer's all-reduce; on GPUs its terms are rounded
    to x's dtype first, as in other engines, which halves what the devices exchange.
    """
    rounded, wide = partial(_sum_rows, x.dtype), partial(_sum_rows, jnp.float32)
    y: jax.Array = jax.lax.platform_dependent(x, kernel[...], cuda=rounded, default=wide)
    if bias is not None:
        y += bias[...].astype(jnp.float32)[None]
    return y.astype(x.dtype)


def _sum_rows(exchanged: jnp.dtype, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """float32[T, E], the devices' terms having been rounded to `exchanged`."""
    return jnp.einsum("tsx,sxe->te", x, kernel, preferred_element_type=exchanged).astype(jnp.float32)
