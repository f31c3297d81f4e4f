"""Which experts tokens visited, kept in their pages beside keys and values: cached, shared, copied and swapped as those are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.config.windows import group_layers
from jaxserve.errors import ConfigError
from jaxserve.executor.cache_arrays import KV_CACHE, CacheArrays
from jaxserve.models.config import DecoderConfig
from sharding import shards_of

ROUTED_EXPERTS = "routed_experts"
_EVERYWHERE = PartitionSpec()


class RoutedLayout(NamedTuple):
    """What is kept of a token.

    Attributes:
        layers: that have experts.
        active: experts that a token visits in each.
        dtype: of an expert's number.
        group: layers whose pages it is kept in: those that see everything, whose pages stay as long as the sequence.
    """

    layers: int
    active: int
    dtype: str
    group: int

    @classmethod
    def of(cls, config: DecoderConfig) -> RoutedLayout:
        """Raises ConfigError for a model without experts, and for one whose layers all have windows."""
        param, experts = "enable_return_routed_experts", config.experts
        if experts is None:
            raise ConfigError(f"{param}: {config.architecture} has no experts", param=param)
        group = group_layers(config.cache_windows).unbounded
        if group is None:
            raise ConfigError(f"{param}: all layers of {config.architecture} have sliding windows", param=param)
        return cls(sum(experts.layers), experts.active, "uint8" if experts.count <= 256 else "uint16", group)

    def shape(self, mesh: Mesh, num_pages: int, page_size: int) -> Any:
        """Of the array of all pages: [1,P,1,K,S,layers*active], of which each device has a copy of its own as KV head."""
        size = (1, num_pages, 1, shards_of(mesh), page_size, self.layers * self.active)
        return jax.ShapeDtypeStruct(size, jnp.dtype(self.dtype), sharding=NamedSharding(mesh, KV_CACHE))


def record_routed(
    layout: RoutedLayout, mesh: Mesh, cache: CacheArrays, routed: Sequence[jax.Array], kv_slots: jax.Array
) -> CacheArrays:
    """The cache after tokens visited experts.

    Args:
        routed: int32[T,active] of each layer that has experts.
        kv_slots: int32[T], where each token's key and value went in the layers of the layout's group.
    """
    assert cache.routed is not None, "pages keep no experts"
    words = jnp.concatenate(routed, axis=1).astype(layout.dtype)

    def put(pages: jax.Array, words: jax.Array, kv_slots: jax.Array) -> jax.Array:
        size = jnp.int32(pages.shape[4])
        page, offset = jax.lax.div(kv_slots, size), jax.lax.rem(kv_slots, size)
        return pages.at[0, page, 0, 0, offset].set(words, mode="promise_in_bounds")

    sharded = jax.shard_map(put, mesh=mesh, in_specs=(KV_CACHE, _EVERYWHERE, _EVERYWHERE), out_specs=KV_CACHE, check_vma=False)
    return replace(cache, routed=sharded(cache.routed, words, kv_slots))


def make_read_routed(layout: RoutedLayout, mesh: Mesh) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A program: (all pages, pages int32[M]) -> [M*S,layers,active], what tokens in those pages visited."""

    def read(routed: jax.Array, pages: jax.Array) -> jax.Array:
        taken = routed.at[0, pages, 0, 0].get(mode="promise_in_bounds")
        return taken.reshape(-1, layout.layers, layout.active)

    return jax.shard_map(read, mesh=mesh, in_specs=(KV_CACHE, _EVERYWHERE), out_specs=_EVERYWHERE, check_vma=False)
