"""kv_write: put one step's keys and values of one layer into the paged cache."""

from __future__ import annotations

from typing import overload

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import checks
from pallas_kernels.kv_write.implementations import IMPLEMENTATIONS
from pallas_kernels.kv_write.problem import WriteProblem
from pallas_kernels.registry import Target, choose


@overload
def kv_write(
    kv_pages: jax.Array,
    k: jax.Array,
    v: jax.Array | None,
    slots: jax.Array,
    *,
    layer: int,
    kv_scales: None = None,
    implementation: str | None = None,
    target: Target | None = None,
) -> jax.Array: ...


@overload
def kv_write(
    kv_pages: jax.Array,
    k: jax.Array,
    v: jax.Array | None,
    slots: jax.Array,
    *,
    layer: int,
    kv_scales: jax.Array,
    implementation: str | None = None,
    target: Target | None = None,
) -> tuple[jax.Array, jax.Array]: ...


def kv_write(
    kv_pages: jax.Array,
    k: jax.Array,
    v: jax.Array | None,
    slots: jax.Array,
    *,
    layer: int,
    kv_scales: jax.Array | None = None,
    implementation: str | None = None,
    target: Target | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Write `k` and `v` into their slots of one layer; in place when the caller's jit donates the cache.

    Args:
        kv_pages: [L, P, 2, K, S, D] bf16, f16, f32, or f8 (E4M3) or int8 with `kv_scales`; axis 2 is key, value.
            [L, P, 1, K, S, D] for a cache of keys alone. Page 0 is the null page: its contents are never read.
        k: [T, K, D] bf16, f16 or f32; converted to the cache's dtype, or quantized.
        v: [T, K, D], like `k`; None for a cache of keys alone.
        slots: int32 [T], page * S + offset. Padding tokens name slot 0, in the null page. Real slots must be distinct and
            inside the cache: `check_inputs` verifies that on concrete arrays, the operation itself does not.
        layer: static index into L.
        kv_scales: the first five axes of `kv_pages`, bf16 or f32, for a cache in f8 or int8. A scale is the largest magnitude of
            the token's key or value of that head over the largest number of that dtype, 448 or 127 (`quantize.py`).
        implementation: a name from `implementations.py`, or None to pick by target, shapes and dtypes.
        target: the device that the program is for; the default device unless given.

    Returns:
        The cache with those slots replaced; with `kv_scales`, the cache and its scales.

    Raises:
        ValueError: a shape, the layer or the implementation's name is wrong, or that implementation cannot do this.
        TypeError: a dtype is not supported.
    """
    checks.require_pages(kv_pages, kv_scales, layer)
    tokens, heads, dim = slots.shape[0] if slots.ndim else None, kv_pages.shape[3], kv_pages.shape[5]
    checks.require_shape("slots", slots, (None,), "[T]")
    checks.require_dtype("slots", slots, (jnp.int32,))
    if (v is None) != (kv_pages.shape[2] == 1):
        raise ValueError(f"v must be None for a cache of keys alone and for no other, the cache is {list(kv_pages.shape)}")
    for name, array in (("k", k),) if v is None else (("k", k), ("v", v)):
        checks.require_shape(name, array, (tokens, heads, dim), "[T, K, D]")
        checks.require_dtype(name, array, checks.FLOAT_DTYPES)
    if v is not None and v.dtype != k.dtype:
        raise TypeError(f"v must be {k.dtype.name} like k, got {v.dtype.name}")
    write = choose("kv_write", IMPLEMENTATIONS, implementation, target, WriteProblem.of(kv_pages, k, kv_scales))
    kv_pages, kv_scales = write(kv_pages, kv_scales, k, v, slots, layer=layer)
    return kv_pages if kv_scales is None else (kv_pages, kv_scales)


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
