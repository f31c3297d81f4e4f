"""Adapters of a step on a mesh: their arrays, what they add to products, and how one is put into its slot."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.config.lora import LoraShape
from jaxserve.executor.flat_params import FlatParams
from jaxserve.models.adapted import Lora, Loras
from jaxserve.models.adapted_experts import LORA_AXES
from jaxserve.models.config import DecoderConfig
from jaxserve.models.lora import lora_arrays, lora_rules
from jaxserve.models.rules import Packing, Path, WeightRule
from pallas_kernels.add_lora import add_lora
from pallas_kernels.registry import Target
from sharding import LAYER_AXES, partition_spec, shards_of

EVERYWHERE = PartitionSpec()
PUT_ADAPTER = "put_adapter"


@dataclass(frozen=True, slots=True)
class ShardedLora:
    """The LoraProducts of a step on a mesh.

    A projection's adapters are divided as it is: what is between A and B is short, so that of one packed by columns every device
    computes it, and of one packed by rows its own part of the sum. That part is multiplied by B and added to what the device has
    of the projection's own product: no device is sent anything for an adapter.

    Attributes:
        implementation: of `add_lora`; None to pick one.
    """

    mesh: Mesh
    implementation: str | None = None

    def columns(self, y: jax.Array, x: jax.Array, lora: Lora, tokens: jax.Array) -> jax.Array:
        """What comes of x[T, E] added to y float32[T, s, X]."""

        def added(y: jax.Array, x: jax.Array, a: jax.Array, b: tuple[jax.Array, ...], tokens: jax.Array) -> jax.Array:
            flat = tuple(one.reshape(*one.shape[:2], -1) for one in b)
            return self._add(y.reshape(y.shape[0], -1), x, a, flat, tokens).reshape(y.shape)

        divided = _columns_spec(lora.b[0].shape[2], self.mesh)
        of_y = PartitionSpec(None, *divided[2:])
        sharded = self._sharded(added, (of_y, EVERYWHERE, EVERYWHERE, (divided,) * len(lora.b), EVERYWHERE), of_y)
        result: jax.Array = sharded(y, x, lora.a, lora.b, tokens)
        return result

    def rows(self, y: jax.Array, x: jax.Array, lora: Lora, tokens: jax.Array) -> jax.Array:
        """What comes of x[T, s, X] added to y float32[T, E]."""

        def added(y: jax.Array, x: jax.Array, a: jax.Array, b: jax.Array, tokens: jax.Array) -> jax.Array:
            return self._add(y[:, 0], x.reshape(x.shape[0], -1), a.reshape(*a.shape[:2], -1), (b,), tokens)[:, None]

        divided, alone = PartitionSpec(None, LAYER_AXES), shards_of(self.mesh) == 1
        of_a = PartitionSpec(None, None, LAYER_AXES)
        sharded = self._sharded(added, (divided, divided, of_a, EVERYWHERE, EVERYWHERE), divided)
        start = y[:, None] if alone else jnp.zeros((y.shape[0], shards_of(self.mesh), y.shape[1]), y.dtype)
        of_devices: jax.Array = sharded(start, x, lora.a, lora.b[0], tokens)
        return of_devices[:, 0] if alone else y + jnp.sum(of_devices, axis=1)

    def _add(self, y: jax.Array, x: jax.Array, a: jax.Array, b: tuple[jax.Array, ...], tokens: jax.Array) -> jax.Array:
        return add_lora(y, x, a, b, tokens, implementation=self.implementation, target=Target.of(self.mesh.devices.flat[0]))

    def _sharded(self, function: Any, specs: tuple[Any, ...], out: PartitionSpec) -> Any:
        return jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=out, check_vma=False)  # as in ShardedDispatch


def abstract_loras(config: DecoderConfig, mesh: Mesh, dtype: str, shape: LoraShape) -> dict[Path, Lora]:
    """The adapters' arrays as jax.ShapeDtypeStructs with shardings, zeros of which are no adapters. Allocates nothing."""

    def array(size: tuple[int, ...], spec: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct((shape.slots, *size), jnp.dtype(dtype), sharding=NamedSharding(mesh, spec))

    loras = {}
    for path, rule in lora_rules(config, experts=shape.experts).items():
        a, b = lora_arrays(rule, shards_of(mesh), shape.rank)
        of_a, of_b = _specs(rule, b[0], mesh)
        loras[path] = Lora(array(a, of_a), tuple(array(one, of_b) for one in b))
    return loras


def _specs(rule: WeightRule, b: tuple[int, ...], mesh: Mesh) -> tuple[PartitionSpec, PartitionSpec]:
    """Of a and of each b, which is of such a shape."""
    if rule.stack is not None:
        axes = LORA_AXES["down" if rule.path[-1] == "down" else "up"]
        return partition_spec(axes.a), partition_spec(axes.b)
    if rule.packing is Packing.ROWS:
        return PartitionSpec(None, None, LAYER_AXES), EVERYWHERE
    return EVERYWHERE, _columns_spec(b[1], mesh)


def put_adapter(loras: FlatParams, slot: jax.Array, numbers: jax.Array) -> FlatParams:
    """The arrays with one adapter in a slot.

    `numbers` [its size] are all its matrices one after the other, in the tree's order.
    """
    at = 0

    def with_one(array: jax.Array) -> jax.Array:
        nonlocal at
        at += prod(array.shape[1:])
        return array.at[slot].set(jax.lax.slice_in_dim(numbers, at - prod(array.shape[1:]), at).reshape(array.shape[1:]))

    tree = loras.tree()
    return FlatParams.of({path: Lora(with_one(tree[path].a), tuple(map(with_one, tree[path].b))) for path in sorted(tree)})


def adapter_size(loras: Loras) -> int:
    """Numbers of one adapter."""
    return sum(prod(leaf.shape[1:]) for leaf in jax.tree.leaves(dict(loras)))


def _columns_spec(parts: int, mesh: Mesh) -> PartitionSpec:
    """Of b [S, R, s, X]; what every device has all of is not divided."""
    return PartitionSpec(None, None, LAYER_AXES if parts == shards_of(mesh) else None)
