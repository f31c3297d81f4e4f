"""rotate_and_write: rotate one step's queries and keys of one layer, and put keys and values into the paged cache."""

from __future__ import annotations

from typing import overload

import jax
import jax.numpy as jnp

from pallas_kernels import checks
from pallas_kernels.kv_write import kv_write
from pallas_kernels.registry import Target, choose
from pallas_kernels.rotate_and_write.implementations import IMPLEMENTATIONS
from pallas_kernels.rotate_and_write.problem import RotateProblem
from pallas_kernels.rotate_and_write.rotation import Rotation, rotate


@overload
def rotate_and_write(
    kv_pages: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array | None,
    rotation: Rotation,
    slots: jax.Array,
    *,
    layer: int,
    kv_scales: None = None,
    implementation: str | None = None,
    target: Target | None = None,
) -> tuple[jax.Array, jax.Array]: ...


@overload
def rotate_and_write(
    kv_pages: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array | None,
    rotation: Rotation,
    slots: jax.Array,
    *,
    layer: int,
    kv_scales: jax.Array,
    implementation: str | None = None,
    target: Target | None = None,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]: ...


def rotate_and_write(
    kv_pages: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array | None,
    rotation: Rotation,
    slots: jax.Array,
    *,
    layer: int,
    kv_scales: jax.Array | None = None,
    implementation: str | None = None,
    target: Target | None = None,
) -> tuple[jax.Array, jax.Array | tuple[jax.Array, jax.Array]]:
    """Rotate `q` and `k`, and write `k` and `v` as `kv_write` does; in place when the caller's jit donates the cache.

    Args:
        kv_pages: [L, P, 2, K, S, D] bf16, f16, f32, or f8 (E4M3) or int8 with `kv_scales`; axis 2 is key, value.
            [L, P, 1, K, S, D] for a cache of keys alone. Page 0 is the null page: its contents are never read.
        q: [T, H, D] bf16, f16 or f32, before the rotation.
        k: [T, K, D], likewise; rotated in float32, rounded to its own dtype, then converted to the cache's, or
            quantized.
        v: [T, K, D]; converted to the cache's dtype, or quantized. None for a cache of keys alone.
        rotation: cosines and sines [T, half], float32; dimensions of q and k from 2 * half on stay as they are.
        slots: int32 [T], page * S + offset. Padding tokens name slot 0, in the null page. See `kv_write`.
        layer: static index into L.
        kv_scales: of a quantized cache, as in `kv_write`, which then follows the rotation.
        implementation: a name from `implementations.py`, or of `kv_write` for a quantized cache; None to pick by target, shapes
            and dtypes.
        target: the device that the program is for; the default device unless given.

    Returns:
        The rotated queries [T, H, D], anything for those of padding tokens; and what `kv_write` returns.

    Raises:
        ValueError: a shape, the layer or the implementation's name is wrong, or that implementation cannot do this.
        TypeError: a dtype is not supported.
    """
    check_arguments(kv_pages, q, k, v, rotation, slots, layer, kv_scales)
    if kv_scales is not None:  # no kernel does both
        keys = rotate(k, rotation)
        written = kv_write(
            kv_pages, keys, v, slots, layer=layer, kv_scales=kv_scales, implementation=implementation, target=target
        )
        return rotate(q, rotation), written
    run = choose("rotate_and_write", IMPLEMENTATIONS, implementation, target, RotateProblem.of(kv_pages, q, rotation))
    return run(kv_pages, q, k, v, rotation, slots, layer=layer)


def check_arguments(
    kv_pages: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array | None,
    rotation: Rotation,
    slots: jax.Array,
    layer: int,
    kv_scales: jax.Array | None = None,
) -> None:
    """Check the shapes and dtypes of a call; raises as the operation does."""
    checks.require_pages(kv_pages, kv_scales, layer)
    tokens, kv_heads, dim = slots.shape[0] if slots.ndim else None, kv_pages.shape[3], kv_pages.shape[5]
    checks.require_shape("slots", slots, (None,), "[T]")
    checks.require_dtype("slots", slots, (jnp.int32,))
    if (v is None) != (kv_pages.shape[2] == 1):
        raise ValueError(f"v must be None for a cache of keys alone and for no other, the cache is {list(kv_pages.shape)}")
    checks.require_shape("q", q, (tokens, None, dim), "[T, H, D]")
    checks.require_dtype("q", q, checks.FLOAT_DTYPES)
    for name, array in (("k", k),) if v is None else (("k", k), ("v", v)):
        checks.require_shape(name, array, (tokens, kv_heads, dim), "[T, K, D]")
        if array.dtype != q.dtype:
            raise TypeError(f"{name} must be {q.dtype.name} like q, got {array.dtype.name}")
    half = rotation.cos.shape[-1]
    for name, array in rotation._asdict().items():
        checks.require_shape(f"rotation.{name}", array, (tokens, half), "[T, half]")
        checks.require_dtype(f"rotation.{name}", array, (jnp.float32,))
    if not 0 < 2 * half <= dim:
        raise ValueError(f"rotation has {2 * half} dimensions, a head has {dim}")
