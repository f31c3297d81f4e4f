"""Attention over pages to the tokens that an index chooses (DeepSeek Sparse Attention): a part of PagedAttend."""

from __future__ import annotations

import jax
from jax.sharding import Mesh, PartitionSpec

from jaxserve.config.kernels import Kernels, kernel_of
from jaxserve.config.windows import LayerGroups
from jaxserve.executor.cache_arrays import KV_CACHE, CacheArrays
from jaxserve.models.indexer import Index
from jaxserve.step.batch import DeviceBatch
from pallas_kernels.kv_write import kv_write
from pallas_kernels.lightning_index import IndexOptions, lightning_index
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.registry import Target
from pallas_kernels.sparse_paged_attention import sparse_paged_attention
from sharding import partition_spec

BY_HEAD = partition_spec((None, "heads"))
EVERYWHERE = PartitionSpec()


class SparseAttend:
    """Writes a layer's new vectors, chooses, and attends.

    Every device has all vectors, chooses for itself, and has heads of its own. That is said with shard_map, as in PagedAttend.
    What an index chooses is found once, for all layers that share it.
    """

    def __init__(self, mesh: Mesh, batch: DeviceBatch, kernels: Kernels, groups: LayerGroups) -> None:
        self._mesh, self._batch, self._kernels, self._groups = mesh, batch, kernels, groups
        self._target = Target.of(mesh.devices.flat[0])
        self._chosen: dict[int, jax.Array] = {}  # by layers of indices

    def __call__(
        self, cache: CacheArrays, layer: int, q: jax.Array, k: jax.Array, options: AttentionOptions, index: Index
    ) -> tuple[CacheArrays, jax.Array]:
        """The cache with k[T,K,D'], and what q[T,H,D] attend to [T,H,options.value_dim]."""
        group, place = self._groups.places[layer]
        writes, attends = (kernel_of(each, layer) for each in (self._kernels.kv_write, self._kernels.attention))
        target = self._target

        def attend(
            cache: CacheArrays,
            q: jax.Array,
            k: jax.Array,
            chosen: jax.Array | None,
            index_q: jax.Array,
            weights: jax.Array,
            *rows: jax.Array,
        ) -> tuple[CacheArrays, jax.Array, jax.Array]:
            slots, *rest = rows
            cache = cache.written(
                kv_write(cache.pages, k, None, slots, layer=place, kv_scales=cache.scales, implementation=writes, target=target)
            )
            pages, scales = cache.pages, cache.scales
            positions = (
                chosen
                if chosen is not None
                else lightning_index(
                    index_q,
                    weights,
                    pages,
                    *rest,
                    layer=place,
                    options=IndexOptions(index.top_k, first=q.shape[2]),
                    kv_scales=scales,
                    implementation=attends,
                    target=target,
                )
            )
            attended = sparse_paged_attention(
                q,
                positions,
                pages,
                *rest,
                layer=place,
                options=options,
                kv_scales=scales,
                implementation=attends,
                target=target,
            )
            return cache, attended, positions

        sharded = jax.shard_map(
            attend,
            mesh=self._mesh,
            in_specs=(KV_CACHE, BY_HEAD, BY_HEAD, *[EVERYWHERE] * 7),
            out_specs=(KV_CACHE, BY_HEAD, EVERYWHERE),
            check_vma=False,
        )
        batch = self._batch
        rows = (batch.kv_slots[group], batch.page_table[group], batch.query_start, batch.kv_length)
        chosen = self._chosen.get(index.layer)
        cache, attended, self._chosen[index.layer] = sharded(cache, q, k, chosen, index.q, index.weights, *rows)
        return cache, attended
