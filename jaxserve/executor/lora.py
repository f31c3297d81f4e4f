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
    """The LoraProducts of a step on a mesh; `kernel` is the grouped matmul's, None for what suits the devices.

    A projection's adapters are divided as it is: what is between A and B is short, so that of one packed by columns every device
    computes it, and of one packed by rows its own part of the sum. That part is multiplied by B and added to what the device has
    of the projection's own product: no device is sent anything for an adapter.
    """

    mesh: Mesh
    kernel: str | None = None

    def columns(self, x: jax.Array, lora: Lora, tokens: jax.Array) -> jax.Array:
        """x[T, E] -> float32[T, s, X]."""
        parts = len(lora.b)

        def expanded(x: jax.Array, a: jax.Array, b: tuple[jax.Array, ...], tokens: jax.Array) -> jax.Array:
            shrunk = self._grouped(x, a, tokens, x.dtype).reshape(x.shape[0], parts, -1)
            each = [
                self._grouped(shrunk[:, place], _flat(one, 2), tokens, jnp.float32).reshape(x.shape[0], *one.shape[2:])
                for place, one in enumerate(b)
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
            shrunk = self._grouped(x.reshape(x.shape[0], -1), _flat(a, 3), tokens, x.dtype)
            return self._grouped(shrunk, b, tokens, jnp.float32)[:, None]

        divided = PartitionSpec(None, LAYER_AXES)
        sharded = self._sharded(part, (divided, divided, EVERYWHERE, EVERYWHERE), divided)
        of_devices: jax.Array = sharded(x, lora.a, lora.b[0], tokens)
        return of_devices[:, 0] if shards_of(self.mesh) == 1 else jnp.sum(of_devices, axis=1)

    def _sharded(self, function: Any, specs: tuple[Any, ...], out: PartitionSpec) -> Any:
        return jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=out, check_vma=False)  # as in ShardedDispatch

    def _grouped(self, x: jax.Array, matrices: jax.Array, tokens: jax.Array, dtype: Any) -> jax.Array:
        target = Target.of(self.mesh.devices.flat[0])
        return grouped_matmul(x, matrices, tokens, dtype=dtype, implementation=self.kernel, target=target)


def abstract_loras(config: DecoderConfig, mesh: Mesh, dtype: str, shape: LoraShape) -> dict[Path, Lora]:
    """The adapters' arrays as jax.ShapeDtypeStructs with shardings, zeros of which are no adapters. Allocates nothing."""

    def array(size: tuple[int, ...], spec: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct((shape.slots, *size), jnp.dtype(dtype), sharding=NamedSharding(mesh, spec))

    loras = {}
    for path, rule in lora_rules(config).items():
        a, b = lora_arrays(rule, shards_of(mesh), shape.rank)
        if len(a) == 2:
            loras[path] = Lora(array(a, EVERYWHERE), tuple(array(one, _columns_spec(one[1], mesh)) for one in b))
        else:
            loras[path] = Lora(array(a, PartitionSpec(None, LAYER_AXES)), tuple(array(one, EVERYWHERE) for one in b))
    return loras


def put_adapter(loras: FlatParams, slot: jax.Array, numbers: jax.Array) -> FlatParams:
    """The arrays with one adapter in a slot, `numbers` [its size]: all its matrices one after the other, in the tree's order."""
    leaves, structure = jax.tree.flatten(loras)
    new, at = [], 0
    for leaf in leaves:
        size = prod(leaf.shape[1:])
        matrix = jax.lax.slice_in_dim(numbers, at, at + size).reshape(leaf.shape[1:])
        new.append(leaf.at[slot].set(matrix))
        at += size
    put: FlatParams = jax.tree.unflatten(structure, new)
    return put


def adapter_size(loras: Loras) -> int:
    """Numbers of one adapter."""
    return sum(prod(leaf.shape[1:]) for leaf in jax.tree.leaves(dict(loras)))


def _columns_spec(parts: int, mesh: Mesh) -> PartitionSpec:
    """Of b [S, R, s, X]; what every device has all of is not divided."""
    return PartitionSpec(None, None, LAYER_AXES if parts == shards_of(mesh) else None)


def _flat(matrices: jax.Array, inputs: int) -> jax.Array:
    """[S, ...] as [S, I, O], where the first `inputs` dimensions, that of the slots included, are not outputs."""
    shape = matrices.shape
    return matrices.reshape(shape[0], prod(shape[1:inputs]), prod(shape[inputs:]))
