"""Recurrent layers over a table of states, as the decoder's layers call them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.models.config import DecoderConfig
from jaxserve.step.batch import DeviceBatch
from jaxserve.step.plan import STATE_WORDS
from pallas_kernels.causal_conv1d import causal_conv1d
from pallas_kernels.gated_linear_attention import LinearOptions, gated_linear_attention
from pallas_kernels.registry import Target
from pallas_kernels.state_rows import StateRows
from sharding import partition_spec

_INPUTS = partition_spec((None, None, None, "heads"))
_MEMORY = partition_spec((None, None, "heads", None, None))
_BY_HEAD = partition_spec((None, "heads"))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class StateTable:
    """States of L recurrent layers at N places; donated to each step.

    Attributes:
        inputs: [L,N,W-1,C], of convolutions, in the activations' dtype. It is never reshaped: XLA would copy all of it, twice.
        memory: f32[L,N,H,D,V]; None where the inputs of convolutions are all that is kept.
    """

    inputs: jax.Array
    memory: jax.Array | None


def abstract_states(config: DecoderConfig, mesh: Mesh, places: int, shards: int, dtype: str) -> Any:
    """A StateTable with a jax.ShapeDtypeStruct at every leaf, which says its sharding; None of a model without."""
    recurrent, layers = config.recurrent, config.num_recurrent
    if recurrent is None:
        return None

    def array(size: tuple[int, ...], dtype: str, spec: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct(size, jnp.dtype(dtype), sharding=NamedSharding(mesh, spec))

    inputs = (layers, places, recurrent.width - 1, recurrent.held_channels(shards))
    memory = (layers, places, *recurrent.state)
    return StateTable(array(inputs, dtype, _INPUTS), array(memory, "float32", _MEMORY) if math.prod(memory) else None)


class TableRecur:
    """The Recur of a step: every device works on its own heads, and their channels.

    Attributes:
        table: with what the rows left there, so far.
    """

    def __init__(self, mesh: Mesh, table: StateTable, batch: DeviceBatch) -> None:
        self.table = table
        self._mesh = mesh
        words = batch.states
        columns = (words[:, column] for column in range(STATE_WORDS))
        source, snapshot, snapshot_at = columns
        self._rows = StateRows(batch.query_start, batch.row_of_token, source, words[:, STATE_WORDS:], snapshot, snapshot_at)
        self._target = Target.of(mesh.devices.flat[0])

    def convolve(self, layer: int, x: jax.Array, weight: jax.Array, bias: jax.Array | None, *, silu: bool) -> jax.Array:
        """x[T,s,C/s], weight[W,s,C/s] and bias[s,C/s] -> [T,s,C/s]."""

        def convolve(
            x: jax.Array, weight: jax.Array, bias: jax.Array | None, inputs: jax.Array, rows: StateRows
        ) -> tuple[jax.Array, jax.Array]:
            out, left = causal_conv1d(
                x.reshape(x.shape[0], -1),
                weight.reshape(weight.shape[0], -1),
                None if bias is None else bias.reshape(-1),
                inputs,
                rows,
                layer=layer,
                silu=silu,
                target=self._target,
            )
            return out.reshape(x.shape), left

        by_shard = partition_spec((None, "heads", None))
        specs = (by_shard, by_shard, partition_spec(("heads", None)), _INPUTS, PartitionSpec())
        sharded = jax.shard_map(convolve, mesh=self._mesh, in_specs=specs, out_specs=(by_shard, _INPUTS), check_vma=False)
        out, inputs = sharded(x, weight, bias, self.table.inputs, self._rows)
        self.table = StateTable(inputs, self.table.memory)
        return out

    def attend(
        self,
        layer: int,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        decay: jax.Array,
        beta: jax.Array,
        options: LinearOptions,
    ) -> jax.Array:
        """q[T,K,D], k[T,K,D], v[T,H,V], decay and beta f32[T,H] -> [T,H,V]."""

        def attend(
            q: jax.Array, k: jax.Array, v: jax.Array, decay: jax.Array, beta: jax.Array, memory: jax.Array, rows: StateRows
        ) -> tuple[jax.Array, jax.Array]:
            return gated_linear_attention(q, k, v, decay, beta, memory, rows, layer=layer, options=options, target=self._target)

        assert self.table.memory is not None, "these layers have one"
        specs = (*[_BY_HEAD] * 5, _MEMORY, PartitionSpec())
        sharded = jax.shard_map(attend, mesh=self._mesh, in_specs=specs, out_specs=(_BY_HEAD, _MEMORY), check_vma=False)
        out, memory = sharded(q, k, v, decay, beta, self.table.memory, self._rows)
        self.table = StateTable(self.table.inputs, memory)
        return out
