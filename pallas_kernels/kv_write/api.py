"""kv_write: put one step's keys and values of one layer into the paged cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import checks
from pallas_kernels.kv_write.implementations import IMPLEMENTATIONS
from pallas_kernels.registry import choose


def kv_write(
    kv_pages: jax.Array,
    k: jax.Array,
    v: jax.Array,
    slots: jax.Array,
    *,
    layer: int,
    implementation: str | None = None,
) -> jax.Array:
    """Write `k` and `v` into their slots of one layer; in place when the caller's jit donates the cache.

    Args:
        kv_pages: [L, P, 2, K, S, D] bf16, f16 or f32; axis 2 is key, value. Page 0 is the null page: its contents
            are never read.
        k: [T, K, D], any float dtype; converted to the cache's.
        v: [T, K, D], like `k`.
        slots: int32 [T], page * S + offset. Padding tokens name slot 0, in the null page. Real slots must be distinct and
            inside the cache: `check_inputs` verifies that on concrete arrays, the operation itself does not.
        layer: static index into L.
        implementation: a name from `implementations.py`, or None to pick by backend.

    Returns:
        The cache with those slots replaced.

    Raises:
        ValueError: a shape, the layer or the implementation's name is wrong.
        TypeError: a dtype is not supported.
    """
    checks.require_pages(kv_pages, layer)
    tokens, heads, dim = slots.shape[0] if slots.ndim else None, kv_pages.shape[3], kv_pages.shape[5]
    checks.require_shape("slots", slots, (None,), "[T]")
    checks.require_dtype("slots", slots, (jnp.int32,))
    for name, array in (("k", k), ("v", v)):
        checks.require_shape(name, array, (tokens, heads, dim), "[T, K, D]")
        checks.require_dtype(name, array, checks.FLOAT_DTYPES)
    return choose("kv_write", IMPLEMENTATIONS, implementation)(kv_pages, k, v, slots, layer=layer)


def check_inputs(kv_pages: jax.Array, slots: np.ndarray) -> None:
    """Check the values that tracing cannot see, on concrete arrays.

    Raises:
        ValueError: a slot is outside the cache, or two tokens share one that is not in the null page.
    """
    size = kv_pages.shape[4]
    slots = np.asarray(slots)
    outside = slots[(slots < 0) | (slots >= kv_pages.shape[1] * size)]
    if outside.size:
        raise ValueError(f"slots must be between 0 and {kv_pages.shape[1] * size - 1}, got {int(outside[0])}")
    real, counts = np.unique(slots[slots >= size], return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"slot {int(real[counts > 1][0])} is written twice")
