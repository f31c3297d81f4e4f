"""What low-rank adapters (LoRA, Hu et al. 2021) add to the products of projections in a step.

A projection W has the matrices of S adapters beside it, in slots of one rank R: a row whose adapter is in slot i gets
x W + (x A_i) B_i, one without an adapter x W. A step's tokens come sorted by slot, those without an adapter behind: so each
adapter is read once, by `add_lora` (Punica, Chen et al. 2023; S-LoRA, Sheng et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxserve.models.rules import Path
from pallas_kernels.matmul import Weight


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Lora:
    """The adapters of one projection, in S slots; s as the projection has it.

    Attributes:
        a: [S, P*R, E] of one that is packed by columns, from P matrices; [S, R, s, X] of one packed by rows.
        b: of each of these matrices [S, R, s, X_p]; [S, R, E] of the one that is packed by rows. The scale is in it.

    Those of routed experts have them as a second dimension everywhere; see `adapted_experts`.
    """

    a: jax.Array
    b: tuple[jax.Array, ...]


class LoraProducts(Protocol):
    """Adds to products what adapters make of the rows, wherever their matrices are.

    `tokens` int32[S] are those of each slot, slot after slot.
    """

    def columns(self, y: jax.Array, x: jax.Array, lora: Lora, tokens: jax.Array) -> jax.Array:
        """What comes of x[T, E] added to y float32[T, s, X]."""
        ...

    def rows(self, y: jax.Array, x: jax.Array, lora: Lora, tokens: jax.Array) -> jax.Array:
        """What comes of x[T, s, X] added to y float32[T, E]."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Adapted:
    """A parameter with the adapters of its projection, while a step that has some is traced."""

    weight: Weight
    lora: Lora
    tokens: jax.Array
    products: LoraProducts = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.weight.shape
        return shape

    @property
    def dtype(self) -> jnp.dtype:
        return self.weight.dtype

    def columns(self, y: jax.Array, x: jax.Array) -> jax.Array:
        return self.products.columns(y, x, self.lora, self.tokens)

    def rows(self, y: jax.Array, x: jax.Array) -> jax.Array:
        return self.products.rows(y, x, self.lora, self.tokens)


Loras = Mapping[Path, Lora]
"""By the path of the projection's parameter."""


class StepAdapters(NamedTuple):
    """The adapters of a step.

    Attributes:
        loras: of its projections.
        tokens: int32[S], how many of the step's tokens each slot has; see LoraProducts.
    """

    loras: Loras
    tokens: jax.Array
    products: LoraProducts


def adapt(params: dict[str, Any], adapters: StepAdapters) -> dict[str, Any]:
    """The tree of parameters with adapters beside the projections that have some."""
    for path, lora in adapters.loras.items():
        params = _with(params, path, partial(_beside, lora, adapters))
    return params


def _beside(lora: Lora, adapters: StepAdapters, weight: Weight) -> Adapted:
    return Adapted(weight, lora, adapters.tokens, adapters.products)


def _with(tree: dict[str, Any], path: Path, change: Callable[[Weight], Adapted]) -> dict[str, Any]:
    first, *rest = path
    return {**tree, first: _with(tree[first], tuple(rest), change) if rest else change(tree[first])}
