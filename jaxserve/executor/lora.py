"""Adapters of a step on a mesh: their arrays, what they add to products, and how one is put into its slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.config.lora import LoraShape
from jaxserve.executor.flat_params import FlatParams
from jaxserve.executor.gpu_options import is_gpu
from jaxserve.models.adapted import Lora, Loras
from jaxserve.models.config import DecoderConfig
from jaxserve.models.lora import lora_arrays, lora_rules
from jaxserve.models.rules import Path
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.registry import Target
from sharding import LAYER_AXES, shards_of

EVERYWHERE = PartitionSpec()
PUT_ADAPTER = "put_adapter"


@dataclass(frozen=True, slots=True)
class ShardedLora:
    """The LoraProducts of a step on a mesh.

    A projection's adapters are divided as it is: what is between A and B is short, so that of one packed by columns every device
    computes it, and of one packed by rows its own part of the sum. That part is multiplied by B and added to what the device has
    of the projection's own product: no device is sent anything for an adapter.

    On CPUs rows are multiplied by the matrices of their own adapter alone. On GPUs by those of all slots, each of which is read
    once as well, and what belongs to others is left out between A and B: ranks are too small for grouped kernels, and what
    is multiplied in vain is little beside what is read.

    Attributes:
        rank_first: whether A is held with its rank first, [S, P*R, E] or [S, R, s, X], and multiplied by as on GPUs.
    """

    mesh: Mesh
    rank_first: bool

    def columns(self, x: jax.Array, lora: Lora, tokens: jax.Array) -> jax.Array:
        """x[T, E] -> float32[T, s, X]."""
        parts = len(lora.b)

        def expanded(x: jax.Array, a: jax.Array, b: tuple[jax.Array, ...], tokens: jax.Array) -> jax.Array:
            each = [
                self._expanded(one, matrices, tokens) for one, matrices in zip(self._shrunk(x, a, tokens, parts), b, strict=True)
            ]
            return each[0] if parts == 1 else jnp.concatenate(each, axis=2)

        divided = _columns_spec(lora.b[0].shape[2], self.mesh)
        out = PartitionSpec(None, *divided[2:])
        sharded = self._sharded(expanded, (EVERYWHERE, EVERYWHERE, (divided,) * parts, EVERYWHERE), out)
        product: jax.Array = sharded(x, lora.a, lora.b, tokens)
        return product

    def rows(self, x: jax.Array, lora: Lora, tokens: jax.Array) -> jax.Array:
        """x[T, s, X] -> float32[T, E]."""

        def part(x: jax.Array, a: jax.Array, b: jax.Array, tokens: jax.Array) -> jax.Array:
            inputs = x.shape[1] * x.shape[2]
            flat = a.reshape(*a.shape[:2], inputs) if self.rank_first else a.reshape(a.shape[0], inputs, -1)
            (shrunk,) = self._shrunk(x.reshape(-1, inputs), flat, tokens, 1)
            return self._expanded(shrunk, b, tokens)[:, None]

        divided = PartitionSpec(None, LAYER_AXES)
        of_a = PartitionSpec(None, None, LAYER_AXES) if self.rank_first else divided
        sharded = self._sharded(part, (divided, of_a, EVERYWHERE, EVERYWHERE), divided)
        of_devices: jax.Array = sharded(x, lora.a, lora.b[0], tokens)
        return of_devices[:, 0] if shards_of(self.mesh) == 1 else jnp.sum(of_devices, axis=1)

    def _shrunk(self, x: jax.Array, a: jax.Array, tokens: jax.Array, parts: int) -> list[jax.Array]:
        """x[T, I] times A, for each of the parts: [T, R], or [T, S, R] on GPUs, 0 but in the slot of the token's adapter."""
        if not self.rank_first:
            shrunk = self._grouped(x, a, tokens, x.dtype).reshape(x.shape[0], parts, -1)
            return [shrunk[:, place] for place in range(parts)]
        every = jnp.einsum("ti,sri->tsr", x, a, preferred_element_type=x.dtype)
        ends = jnp.cumsum(tokens)[None]
        place = jnp.arange(x.shape[0], dtype=jnp.int32)[:, None]
        mine = (place >= ends - tokens[None]) & (place < ends)
        chosen = jnp.where(mine[:, :, None], every, jnp.zeros((), x.dtype))
        return jnp.split(chosen, parts, axis=2)

    def _expanded(self, shrunk: jax.Array, b: jax.Array, tokens: jax.Array) -> jax.Array:
        """What was shrunk times B[S, R, ...]: float32[T, ...]."""
        if not self.rank_first:
            product = self._grouped(shrunk, b.reshape(*b.shape[:2], -1), tokens, jnp.float32)
        else:
            rank = b.shape[0] * b.shape[1]
            product = jnp.matmul(shrunk.reshape(-1, rank), b.reshape(rank, -1), preferred_element_type=jnp.float32)
        return product.reshape(-1, *b.shape[2:])

    def _sharded(self, function: Any, specs: tuple[Any, ...], out: PartitionSpec) -> Any:
        return jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=out, check_vma=False)  # as in ShardedDispatch

    def _grouped(self, x: jax.Array, matrices: jax.Array, tokens: jax.Array, dtype: Any) -> jax.Array:
        return grouped_matmul(x, matrices, tokens, dtype=dtype, target=Target.of(self.mesh.devices.flat[0]))


def has_rank_first(mesh: Mesh) -> bool:
    """Whether devices hold A so."""
    return is_gpu(mesh.devices.flat[0])


def abstract_loras(config: DecoderConfig, mesh: Mesh, dtype: str, shape: LoraShape, *, rank_first: bool) -> dict[Path, Lora]:
    """The adapters' arrays as jax.ShapeDtypeStructs with shardings, zeros of which are no adapters. Allocates nothing."""

    def array(size: tuple[int, ...], spec: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct((shape.slots, *size), jnp.dtype(dtype), sharding=NamedSharding(mesh, spec))

    loras = {}
    for path, rule in lora_rules(config).items():
        a, b = lora_arrays(rule, shards_of(mesh), shape.rank)
        held = (a[-1], *a[:-1]) if rank_first else a
        if len(a) == 2:
            loras[path] = Lora(array(held, EVERYWHERE), tuple(array(one, _columns_spec(one[1], mesh)) for one in b))
        else:
            divided = PartitionSpec(None, None, LAYER_AXES) if rank_first else PartitionSpec(None, LAYER_AXES)
            loras[path] = Lora(array(held, divided), tuple(array(one, EVERYWHERE) for one in b))
    return loras


def make_put_adapter(*, rank_first: bool) -> Callable[[FlatParams, jax.Array, jax.Array], FlatParams]:
    """(loras, slot, numbers) -> loras with one adapter in a slot.

    `numbers` [its size] are all its matrices one after the other, in the tree's order, each A with its rank last.
    """

    def put(loras: FlatParams, slot: jax.Array, numbers: jax.Array) -> FlatParams:
        at = 0

        def taken(shape: tuple[int, ...]) -> jax.Array:
            nonlocal at
            at += prod(shape)
            return jax.lax.slice_in_dim(numbers, at - prod(shape), at).reshape(shape)

        def with_one(lora: Lora) -> Lora:
            shape = lora.a.shape[1:]
            a = jnp.moveaxis(taken((*shape[1:], shape[0])), -1, 0) if rank_first else taken(shape)
            return Lora(lora.a.at[slot].set(a), tuple(b.at[slot].set(taken(b.shape[1:])) for b in lora.b))

        tree = loras.tree()
        return FlatParams.of({path: with_one(tree[path]) for path in sorted(tree)})

    return put


def adapter_size(loras: Loras) -> int:
    """Numbers of one adapter."""
    return sum(prod(leaf.shape[1:]) for leaf in jax.tree.leaves(dict(loras)))


def _columns_spec(parts: int, mesh: Mesh) -> PartitionSpec:
    """Of b [S, R, s, X]; what every device has all of is not divided."""
    return PartitionSpec(None, None, LAYER_AXES if parts == shards_of(mesh) else None)
