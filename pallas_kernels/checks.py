"""Checks made while tracing, from shapes and dtypes alone; messages name the argument and both shapes."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

FLOAT_DTYPES = (jnp.bfloat16, jnp.float16, jnp.float32)
QUANTIZED_DTYPES = (jnp.float8_e4m3fn, jnp.int8)  # of a cache with scales
SCALE_DTYPES = (jnp.bfloat16, jnp.float32)  # the range of what they scale: no vector is too small or too large


class Typed(Protocol):
    """An array, or what stands for one."""

    @property
    def dtype(self) -> jnp.dtype: ...


def require_shape(name: str, array: jax.Array, expected: tuple[int | None, ...], axes: str) -> None:
    """Raise ValueError unless `array` has the expected shape; None matches any size. `axes` is its description."""
    same = len(array.shape) == len(expected) and all(
        want is None or have == want for have, want in zip(array.shape, expected, strict=True)
    )
    if not same:
        wanted = ", ".join("any" if size is None else str(size) for size in expected)
        raise ValueError(f"{name} must be {axes} = [{wanted}], got {list(array.shape)}")


def require_dtype(name: str, array: Typed, allowed: tuple[Any, ...]) -> None:
    """Raise TypeError unless the dtype of `array` is one of `allowed`."""
    dtypes = [jnp.dtype(dtype) for dtype in allowed]
    if array.dtype not in dtypes:
        raise TypeError(f"{name} must be {' or '.join(d.name for d in dtypes)}, got {array.dtype.name}")


def require_pages(kv_pages: jax.Array, kv_scales: jax.Array | None, layer: int) -> None:
    """Check a paged cache, its scales, and that it has this layer.

    Raises:
        ValueError: `kv_pages` is not [L, P, 2, K, S, D] or [L, P, 1, K, S, D], `kv_scales` are not its first five axes, or
            `layer` is outside them.
        TypeError: the dtype of the cache or of its scales is not supported, or they do not go together.
    """
    halves = 1 if kv_pages.ndim == 6 and kv_pages.shape[2] == 1 else 2
    require_shape("kv_pages", kv_pages, (None, None, halves, None, None, None), f"[L, P, {halves}, K, S, D]")
    require_dtype("kv_pages", kv_pages, FLOAT_DTYPES + QUANTIZED_DTYPES)
    quantized = kv_pages.dtype in [jnp.dtype(dtype) for dtype in QUANTIZED_DTYPES]
    if quantized != (kv_scales is not None):
        need = "needs" if quantized else "must have no"
        raise TypeError(f"a cache of {kv_pages.dtype.name} {need} kv_scales")
    if kv_scales is not None:
        require_shape("kv_scales", kv_scales, kv_pages.shape[:5], f"[L, P, {halves}, K, S]")
        require_dtype("kv_scales", kv_scales, SCALE_DTYPES)
    if not 0 <= layer < kv_pages.shape[0]:
        raise ValueError(f"layer must be between 0 and {kv_pages.shape[0] - 1}, got {layer}")


def require_page_rows(page_table: jax.Array, query_start: jax.Array, kv_length: jax.Array) -> None:
    """Check the rows of a batch over a paged cache.

    Raises:
        ValueError: they are not [R, M], [R + 1] and [R], or there are none.
        TypeError: one of them is not int32.
    """
    require_shape("page_table", page_table, (None, None), "[R, M]")
    rows = page_table.shape[0]
    if 0 in page_table.shape:
        raise ValueError(f"page_table must not be empty, got {list(page_table.shape)}")
    require_shape("query_start", query_start, (rows + 1,), "[R + 1]")
    require_shape("kv_length", kv_length, (rows,), "[R]")
    for name, array in (("page_table", page_table), ("query_start", query_start), ("kv_length", kv_length)):
        require_dtype(name, array, (jnp.int32,))
