"""How a Mosaic GPU kernel goes through the tokens of a row whose state it keeps in registers; see state_rows.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.state_rows import StateRows

State = TypeVar("State")


class KernelRows(NamedTuple):
    """What a kernel takes of StateRows, and the layer, int32[1]: an argument, so that all layers share one trace and kernel."""

    query_start: Any
    source: Any
    destination: Any
    snapshot: Any
    snapshot_at: Any
    layer: Any

    @classmethod
    def of(cls, rows: StateRows, layer: int) -> KernelRows:
        taken = (rows.query_start, rows.source, rows.destination, rows.snapshot, rows.snapshot_at)
        return cls(*taken, jnp.full(1, layer, jnp.int32))


def walk(
    rows: KernelRows,
    row: jax.Array,
    places: int,
    most: int | None = None,
    *,
    read: Callable[[jax.Array], State],
    step: Callable[[jax.Array, State], State],
    write: Callable[[jax.Array, State], None],
) -> None:
    """Read a row's state, step from token to token, and write the states that are wanted.

    Nothing is done for a row without tokens, or with more than `most`.

    Args:
        rows: in the kernel.
        row: which one.
        places: N.
        most: tokens; None for however many.
        read: the state at a place of [L * N].
        step: from a token and the state before it to the state after it.
        write: the state to a place of [L * N].
    """
    first, width = rows.query_start[row], rows.destination.shape[1]
    tokens = rows.query_start[row + 1] - first
    begin = rows.layer[0] * places

    def leave(state: State, place: jax.Array, wanted: jax.Array) -> None:
        pl.when(wanted & (place < places))(lambda: write(begin + place, state))

    def visit(token: jax.Array, state: State) -> State:
        state = step(first + token, state)
        leave(state, rows.snapshot[row], rows.snapshot_at[row] == token + 1)
        column = token - (tokens - width)
        leave(state, rows.destination[row, jnp.maximum(column, 0)], column >= 0)
        return state

    @pl.when((tokens > 0) if most is None else (tokens > 0) & (tokens <= most))
    def _visit_all() -> None:
        lax.fori_loop(0, tokens, visit, read(begin + rows.source[row]))
