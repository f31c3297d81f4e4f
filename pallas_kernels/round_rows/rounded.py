"""Rows that are rounded already: what several products of the same rows share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Rounded:
    """Rows x[T, ..., I] in E4M3.

    Attributes:
        values: E4M3 [T or more, ..., I]; rows behind the first T may hold anything.
        steps: float32 [T, ...], what each row's values are multiples of.
        dtype: that the rows had, and that results of products with them have.
    """

    values: jax.Array
    steps: jax.Array
    dtype: jnp.dtype = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.steps.shape, self.values.shape[-1])

    @property
    def size(self) -> int:
        return prod(self.shape)

    def reshape(self, *shape: int) -> Rounded:
        """The same rows with other dimensions between the first and the last, which stay."""
        return replace(self, values=self.values.reshape(-1, *shape[1:]), steps=self.steps.reshape(shape[:-1]))
