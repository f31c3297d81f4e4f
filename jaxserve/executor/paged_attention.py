"""Attention over pages, as the decoder's layers call it."""

from __future__ import annotations

import jax
from jax.sharding import Mesh, PartitionSpec

from jaxserve.config.kernels import Kernels, kernel_of
from jaxserve.config.windows import LayerGroups
from jaxserve.executor.cache_arrays import KV_CACHE, CacheArrays, PageView
from jaxserve.executor.expanded_latents import Split, heads_at_once
from jaxserve.executor.sparse_attention import SparseAttend
from jaxserve.models.indexer import Index
from jaxserve.models.latent_heads import LatentHeads
from jaxserve.step.batch import DeviceBatch
from pallas_kernels.expanded_attention import expanded_attention
from pallas_kernels.kv_write import kv_write
from pallas_kernels.ragged_paged_attention import AttentionOptions, ragged_paged_attention
from pallas_kernels.registry import Target
from pallas_kernels.rotate_and_write import Rotation, rotate_and_write
from pallas_kernels.rotate_write_attend import rotate_write_attend
from sharding import partition_spec

EVERYWHERE = PartitionSpec()


class PagedAttend:
    """Attention over pages as Attend says: writes the layer's new keys and values, then attends.

    Every device works on its own heads of the cache. That is said with shard_map: left to the compiler, the ops' reshapes of
    the cache would gather all of it, and it cannot partition a kernel call at all.
    """

    def __init__(self, mesh: Mesh, cache: CacheArrays, batch: DeviceBatch, kernels: Kernels, groups: LayerGroups) -> None:
        self.cache = cache
        self._groups = groups
        self._mesh = mesh
        self._batch = batch
        self._kernels = kernels
        self._target = Target.of(mesh.devices.flat[0])
        self._sparse = SparseAttend(mesh, batch, kernels, groups)

    def __call__(
        self,
        layer: int,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array | None,
        rope: Rotation | None,
        options: AttentionOptions,
        sinks: jax.Array | None,
        index: Index | None = None,
        heads: LatentHeads | None = None,
    ) -> jax.Array:
        """q[T,H,D], k[T,K,D], v[T,K,D] and sinks[H] if any -> [T,H,D], or [T,H,options.value_dim], or [T,H,V] of `heads`."""
        batch, group = self._batch, self._groups.places[layer][0]
        rows = batch.query_start, batch.kv_length
        if index is not None:
            self.cache, attended = self._sparse(self.cache, layer, q, k, options, index)
            return attended if heads is None else heads.values(attended)
        if heads is None:
            return self._write_and_attend(layer, q, k, v, rope, options, sinks, *rows)
        split = Split.of(batch, group, heads, self.cache.page_size)
        if split is None:
            return heads.values(self._write_and_attend(layer, q, k, None, None, options, None, *rows))
        short, long = split.short, split.long
        q = q[short.token]
        attended = self._write_and_attend(layer, q, k, None, None, options, None, short.query_start, short.kv_length)
        made = self._expanded(layer, k, heads._replace(q=heads.q[long.token]), options, split)
        return split.merge(made, heads.values(attended))

    def _write_and_attend(
        self,
        layer: int,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array | None,
        rope: Rotation | None,
        options: AttentionOptions,
        sinks: jax.Array | None,
        query_start: jax.Array,
        kv_length: jax.Array,
    ) -> jax.Array:
        """The new keys and values of all tokens are written; q are of rows that begin and end as is said."""
        batch = self._batch
        group, place = self._groups.places[layer]
        stores = self._groups.places.index((group, place)) == layer  # once, of layers that attend to the same

        def write_and_attend(
            cache: CacheArrays,
            q: jax.Array,
            k: jax.Array,
            v: jax.Array | None,
            sinks: jax.Array | None,
            rope: Rotation | None,
            kv_slots: jax.Array,
            *rows: jax.Array,
        ) -> tuple[CacheArrays, jax.Array]:
            scales, shape = cache.scales, cache.stored.shape
            if (view := PageView.of(cache.pages, k)) is not None:
                cache, kv_slots = view.opened(cache), view.slots(kv_slots, cache.page_size)
                rows = (view.page_table(rows[0]), *rows[1:])
            pages = cache.pages
            kernel, attention_kernel = (kernel_of(each, layer) for each in (self._kernels.kv_write, self._kernels.attention))
            if rope is not None and scales is None and kernel is None and attention_kernel is None:
                attended, pages = rotate_write_attend(
                    pages, q, k, v, rope, kv_slots, *rows, layer=place, options=options, sinks=sinks, target=self._target
                )
                return cache.written(pages).shaped(shape), attended
            if rope is not None:
                q, written = rotate_and_write(
                    pages, q, k, v, rope, kv_slots, layer=place, kv_scales=scales, implementation=kernel, target=self._target
                )
                cache = cache.written(written)
            elif stores:
                written = kv_write(
                    pages, k, v, kv_slots, layer=place, kv_scales=scales, implementation=kernel, target=self._target
                )
                cache = cache.written(written)
            attended = ragged_paged_attention(
                q if cache.scales is not None else q.astype(pages.dtype),
                cache.pages,
                *rows,
                layer=place,
                options=options,
                kv_scales=cache.scales,
                sinks=sinks,
                implementation=attention_kernel,
                target=self._target,
            )
            return cache.shaped(shape), attended

        by_head = partition_spec((None, "heads"))
        sharded = jax.shard_map(
            write_and_attend,
            mesh=self._mesh,
            in_specs=(KV_CACHE, by_head, by_head, by_head, partition_spec(("heads",)), *[EVERYWHERE] * 5),
            out_specs=(KV_CACHE, by_head),
            check_vma=False,  # the ops' loops start from constants, which the check takes for a mismatch
        )
        rows = (batch.page_table[group], query_start, kv_length)
        self.cache, attended = sharded(self.cache, q, k, v, sinks, rope, batch.kv_slots[group], *rows)
        return attended.astype(q.dtype)

    def _expanded(self, layer: int, k: jax.Array, heads: LatentHeads, options: AttentionOptions, split: Split) -> jax.Array:
        """What the rows of many tokens attend to, [T,H,V], once the cache has their latents, which are as k[T,K,D] are."""
        group, place = self._groups.places[layer]
        kernel, page_size = kernel_of(self._kernels.attention, layer), self.cache.page_size

        def attend(
            cache: CacheArrays, k: jax.Array, q: jax.Array, key_up: jax.Array, value_up: jax.Array, *rows: jax.Array
        ) -> jax.Array:
            if (view := PageView.of(cache.pages, k)) is not None:
                cache, rows = view.opened(cache), (view.page_table(rows[0]), *rows[1:])
            own = LatentHeads(q, key_up, value_up)
            return expanded_attention(
                *own,
                cache.pages,
                *rows,
                layer=place,
                options=options,
                num_pages=split.num_pages,
                heads_at_once=heads_at_once(own, split.num_pages * page_size),
                kv_scales=cache.scales,
                implementation=kernel,
                target=self._target,
            )

        by_head, matrices = partition_spec((None, "heads")), partition_spec(("heads",))
        specs = (KV_CACHE, by_head, by_head, matrices, matrices, *[EVERYWHERE] * 3)
        sharded = jax.shard_map(attend, mesh=self._mesh, in_specs=specs, out_specs=by_head, check_vma=False)
        rows = (self._batch.page_table[group], split.long.query_start, split.long.kv_length)
        attended: jax.Array = sharded(self.cache, k, *heads, *rows)
        return attended
