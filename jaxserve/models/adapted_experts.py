"""What adapters add to a layer's experts: a visit has the matrices of its token's adapter for the expert that is visited.

Visits are put in the order of slots, and of experts within one, so that `add_lora` takes each expert of each slot for an adapter.
Devices have the adapters' parts for the experts that they have, and for the columns and rows of these; what each adds to its own
sum is joined with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxserve.models.adapted import Adapted, Lora
from jaxserve.models.parameter import Parameter
from sharding import LogicalAxes


class AddLora(Protocol):
    """`pallas_kernels.add_lora.add_lora` for a device."""

    def __call__(self, y: jax.Array, x: jax.Array, a: jax.Array, b: Sequence[jax.Array], tokens: jax.Array) -> jax.Array: ...


class LoraAxes(NamedTuple):
    """The logical axes of a Lora's arrays."""

    a: LogicalAxes
    b: LogicalAxes


class ExpertLoras(NamedTuple):
    """The adapters of a layer's experts, in S slots, or what one device has of them: of X experts, in s parts.

    Attributes:
        up: a [S, X, 2R, E], b [S, X, R, s, F/s] of gate and of up; None if adapters do not change routed experts.
        down: a [S, X, R, s, F/s], b [S, X, R, E]; likewise.
        shared_up, shared_down: of the expert that every token visits, as of a dense MLP; None without one.
        tokens: int32[S], how many of the step's tokens each slot has.
    """

    up: Lora | None
    down: Lora | None
    shared_up: Lora | None
    shared_down: Lora | None
    tokens: jax.Array


LORA_AXES: Mapping[str, LoraAxes] = MappingProxyType(
    {
        "up": LoraAxes((None, "experts", None, "embed"), (None, "experts", None, "expert_ffn", None)),
        "down": LoraAxes((None, "experts", None, "expert_ffn", None), (None, "experts", None, "embed")),
        "shared_up": LoraAxes((None, None, "embed"), (None, None, "ffn", None)),
        "shared_down": LoraAxes((None, None, "ffn", None), (None, None, "embed")),
    }
)
"""Of ExpertLoras."""


def expert_loras(parameters: Mapping[str, Parameter | None]) -> ExpertLoras | None:
    """The adapters beside a layer's parameters, by the names of ExpertLoras; None in a step that has none."""
    values: dict[str, Any] = {
        name: None if parameter is None else parameter.get_value() for name, parameter in parameters.items()
    }
    adapted = {name: value for name, value in values.items() if isinstance(value, Adapted)}
    if not adapted:
        return None
    loras = {name: adapted[name].lora if name in adapted else None for name in LORA_AXES}
    return ExpertLoras(**loras, tokens=next(iter(adapted.values())).tokens)


class AdaptedVisits:
    """The visits of a step whose adapters change experts that a device has.

    Args:
        loras: the device's, of which the routed experts' are there.
        experts: int32[N], which of the device's X experts each visit is of, token after token; X where it is of none of them.
        sizes: int32[X], how many visits are of each.
        inverse: int32[N], where each visit is among all of them by expert, those of one in the order of tokens.
        active: visits of a token.
        add: what adds what comes of the adapters.
    """

    def __init__(
        self, loras: ExpertLoras, experts: jax.Array, sizes: jax.Array, inverse: jax.Array, active: int, add: AddLora
    ) -> None:
        assert loras.up is not None
        assert loras.down is not None
        self._up, self._down, self._active, self._add = loras.up, loras.down, active, add
        slots, count = loras.up.a.shape[:2]
        visit = jnp.arange(experts.shape[0], dtype=jnp.int32)
        slot = jnp.sum(visit[:, None] // active >= jnp.cumsum(loras.tokens)[None], axis=1, dtype=jnp.int32)
        nobodys = slots * count
        pairs = jnp.where((slot < slots) & (experts < count), slot * count + experts, nobodys)
        self._visits = jnp.zeros(nobodys, jnp.int32).at[pairs].add(1, mode="drop")
        # Tokens come by slot, so that those of a slot are neighbours among an expert's visits: they are moved together.
        table = self._visits.reshape(slots, count)
        begin = (jnp.cumsum(sizes) - sizes)[None] + jnp.cumsum(table, axis=0) - table
        moved = jnp.cumsum(self._visits) - self._visits - begin.reshape(-1)
        behind = jnp.sum(self._visits) + jnp.cumsum(pairs == nobodys) - 1
        self._inverse = inverse
        self._places = jnp.where(pairs == nobodys, behind, inverse + moved.at[pairs].get(mode="clip"))
        self._order = jnp.zeros_like(visit).at[self._places].set(visit, mode="promise_in_bounds", unique_indices=True)

    def up(self, x: jax.Array, order: jax.Array) -> jax.Array:
        """What is added to the first product: float32[N, s*2F/s] of tokens x[T, E], the visits in an order."""
        both = self._added(x[self._order // self._active], self._up)
        parts, shards = len(self._up.b), self._up.b[0].shape[3]
        # Matrix after matrix, each with all its shards, becomes shard after shard.
        both = both.reshape(len(both), parts, shards, -1).swapaxes(1, 2).reshape(len(both), -1)
        return both[self._places[order]]

    def down(self, hidden: jax.Array) -> jax.Array:
        """What is added to the second: float32[N, E], token after token, of hidden[N, s*F/s] by expert."""
        return self._added(hidden[self._inverse[self._order]], self._down)[self._places]

    def _added(self, rows: jax.Array, lora: Lora) -> jax.Array:
        """What comes of rows in the order of their adapters, all experts of a slot one after the other."""
        a = lora.a.reshape(self._visits.shape[0], -1, rows.shape[1])
        b = [one.reshape(self._visits.shape[0], one.shape[2], -1) for one in lora.b]
        nothing = jnp.zeros((rows.shape[0], sum(one.shape[2] for one in b)), jnp.float32)
        return self._add(nothing, rows, a, b, self._visits)


def add_shared(y: jax.Array, x: jax.Array, lora: Lora | None, tokens: jax.Array, add: AddLora) -> jax.Array:
    """What adapters of a shared expert's projection make of x added to y float32, both of which are one device's."""
    if lora is None:
        return y
    flat = [one.reshape(*one.shape[:2], -1) for one in (lora.a, *lora.b)]
    return add(y.reshape(y.shape[0], -1), x.reshape(x.shape[0], -1), flat[0], flat[1:], tokens).reshape(y.shape)
