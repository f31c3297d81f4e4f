"""The KV cache as a program's state has it: pages, and the scales of a quantized one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding

from pallas_kernels.checks import QUANTIZED_DTYPES
from sharding import KV_PAGES_AXES, partition_spec

KV_CACHE = partition_spec(KV_PAGES_AXES[:4])  # of pages and scales: they are divided by KV head, and all that follows is whole
SCALES_DTYPE = "bfloat16"
_FLOAT8 = jnp.dtype(jnp.float8_e4m3fn)
_BYTES = jnp.dtype(jnp.uint8)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class CacheArrays:
    """Keys and values of every page; donated to each step.

    Attributes:
        stored: [L,P,2,K,S,D] or [L,P,1,K,S,D], sharded over K; float8 as bytes (uint8), because on CPUs XLA converts all of
            a float8 array to scatter to it or to gather from it.
        scales: its first five axes, one of each key and value of a token and KV head; None if the cache is not quantized.
        routed: which experts the tokens visited; None where nobody asks (see `routed_experts`).
    """

    stored: jax.Array
    scales: jax.Array | None = None
    routed: jax.Array | None = None

    @property
    def pages(self) -> jax.Array:
        """As operations take them, in the dtype of the cache."""
        return lax.bitcast_convert_type(self.stored, _FLOAT8) if self.stored.dtype == _BYTES else self.stored

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self.stored.shape[4]

    def shaped(self, shape: tuple[int, ...]) -> CacheArrays:
        """The same numbers in pages of another shape."""
        return self if self.stored.shape == shape else replace(self, stored=self.stored.reshape(shape))

    def written(self, result: jax.Array | tuple[jax.Array, jax.Array]) -> CacheArrays:
        """The cache after an operation that returned pages, or pages and scales."""
        pages, scales = result if isinstance(result, tuple) else (result, None)
        stored = lax.bitcast_convert_type(pages, _BYTES) if pages.dtype == _FLOAT8 else pages
        return CacheArrays(stored, scales, self.routed)


class PageView(NamedTuple):
    """Pages as layers see them that have other heads than the cache, and no more numbers of a token.

    A page of the cache is as many smaller ones as would have its numbers; the layer has the first of them.

    Attributes:
        parts: pages that one of the cache is.
        heads, dim: K and D of the layer's keys and values, on one device.
    """

    parts: int
    heads: int
    dim: int

    @classmethod
    def of(cls, pages: jax.Array, k: jax.Array) -> PageView | None:
        """Of a device's pages [L,P,2,K,S,D] for keys [T,K',D']; None if they have those heads."""
        if pages.shape[3::2] == k.shape[1:]:
            return None
        heads, dim = k.shape[1:]
        return cls(pages.shape[3] * pages.shape[5] // (heads * dim), heads, dim)

    def opened(self, cache: CacheArrays) -> CacheArrays:
        """[L,P,2,K,S,D] as [L,parts*P,2,K',S,D']: the numbers stay where they are. A quantized cache has no such views."""
        layers, count, halves, _, size, _ = cache.stored.shape
        return cache.shaped((layers, count * self.parts, halves, self.heads, size, self.dim))

    def page_table(self, page_table: jax.Array) -> jax.Array:
        """Numbers of pages of the cache as those of the layer's."""
        return page_table * self.parts

    def slots(self, kv_slots: jax.Array, page_size: int) -> jax.Array:
        """Places of tokens in pages of the cache as those in the layer's."""
        size = jnp.int32(page_size)
        slots: jax.Array = lax.div(kv_slots, size) * (size * self.parts) + lax.rem(kv_slots, size)
        return slots


def abstract_cache(shape: tuple[int, ...], dtype: str, mesh: Mesh, routed: Any = None) -> CacheArrays:
    """Shapes and shardings of a cache whose pages have this shape and dtype; `routed` is that of visited experts, if kept."""

    def array(size: tuple[int, ...], dtype: jnp.dtype) -> Any:
        return jax.ShapeDtypeStruct(size, dtype, sharding=NamedSharding(mesh, KV_CACHE))

    scales = array(shape[:5], jnp.dtype(SCALES_DTYPE)) if is_quantized(dtype) else None
    return CacheArrays(array(shape, _BYTES if jnp.dtype(dtype) == _FLOAT8 else jnp.dtype(dtype)), scales, routed)


def is_quantized(dtype: str) -> bool:
    """Whether a cache of this dtype has scales."""
    return jnp.dtype(dtype) in [jnp.dtype(quantized) for quantized in QUANTIZED_DTYPES]


def describe_cache(dtype: str) -> str:
    """What decides how numbers become those of a cache: pages of one description are not read as those of another."""
    return f"{dtype}, scales in {SCALES_DTYPE}" if is_quantized(dtype) else dtype
