"""The KV cache as a program's state has it: pages, and the scales of a quantized one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

    def written(self, result: jax.Array | tuple[jax.Array, jax.Array]) -> CacheArrays:
        """The cache after an operation that returned pages, or pages and scales."""
        pages, scales = result if isinstance(result, tuple) else (result, None)
        stored = lax.bitcast_convert_type(pages, _BYTES) if pages.dtype == _FLOAT8 else pages
        return CacheArrays(stored, scales, self.routed)


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
