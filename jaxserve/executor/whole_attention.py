"""Attention of a step whose prompts are whole, in both directions, as the model's layers call it."""

from __future__ import annotations

import jax
from jax.sharding import Mesh, PartitionSpec

from jaxserve.executor.cache_arrays import CacheArrays
from jaxserve.models.indexer import Index
from jaxserve.models.latent_heads import LatentHeads
from pallas_kernels.ragged_attention import ragged_attention
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.registry import Target
from pallas_kernels.rotate_and_write import Rotation, rotate
from sharding import partition_spec


class WholeAttend:
    """The Attend of a model that caches nothing: every device works on its own heads.

    Attributes:
        cache: without anything in it, as the step's state has it.
    """

    def __init__(self, mesh: Mesh, cache: CacheArrays, query_start: jax.Array) -> None:
        self.cache = cache
        self._mesh = mesh
        self._query_start = query_start
        self._target = Target.of(mesh.devices.flat[0])

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
        """q[T,H,D], k[T,K,D] and v[T,K,D] -> [T,H,D]."""
        assert v is not None, "no bidirectional family has latents"
        assert heads is None, "nor heads that make something of them"
        assert index is None, "nor chooses what tokens attend to"
        assert sinks is None, "nor sinks"
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, query_start: jax.Array) -> jax.Array:
            return ragged_attention(q, k, v, query_start, options=options, target=self._target)

        by_head = partition_spec((None, "heads"))
        specs = (by_head, by_head, by_head, PartitionSpec())
        sharded = jax.shard_map(attend, mesh=self._mesh, in_specs=specs, out_specs=by_head, check_vma=False)  # as in PagedAttend
        attended: jax.Array = sharded(q, k, v, self._query_start)
        return attended
