"""Recurrent states of fixed size, one table of N of them: where a step's rows read theirs, and where they leave them.

A sequence's state is at one place, a snapshot of an earlier one may be at another: rows read from one place and write to others,
so nothing is ever copied. No place is read by one row of a step and written by another.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import checks


class StateRows(NamedTuple):
    """R rows of a step of T tokens. All int32.

    Attributes:
        query_start: [R+1], rising: row r is tokens query_start[r]:query_start[r+1]. Those behind the last row may hold anything.
        row_of_token: [T].
        source: [R], the place of the state that the row goes on from. Place 0 holds zeros, with which sequences begin.
        destination: [R, W], where the states after the row's last W tokens go, that after the last one last: of tokens that are
            drafts, any may turn out to be the last right one. N or more where a state is not wanted, and where no token is.
        snapshot: [R], where the state after its first `snapshot_at` tokens goes, too.
        snapshot_at: [R], at least 1 and at most the row's tokens; 0 for no snapshot.
    """

    query_start: jax.Array
    row_of_token: jax.Array
    source: jax.Array
    destination: jax.Array
    snapshot: jax.Array
    snapshot_at: jax.Array

    @property
    def lengths(self) -> jax.Array:
        """int32[R], tokens of each row."""
        return self.query_start[1:] - self.query_start[:-1]

    @property
    def places(self) -> jax.Array:
        """int32[T], of each token in its row."""
        return jnp.arange(self.row_of_token.shape[0], dtype=jnp.int32) - self.query_start[self.row_of_token]

    def writes(self, places: int) -> tuple[jax.Array, jax.Array]:
        """What is written of each row: after how many of its tokens, and where to, int32[R, 1 + W].

        What is not written goes behind the last of so many `places`, and is after all of the row's tokens.
        """
        width = self.destination.shape[1]
        lengths = self.lengths[:, None]
        after = jnp.concatenate(
            [self.snapshot_at[:, None], lengths - width + 1 + jnp.arange(width, dtype=jnp.int32)[None]], axis=1
        )
        to = jnp.concatenate([self.snapshot[:, None], self.destination], axis=1)
        written = (after > 0) & (to < places)
        return jnp.where(written, after, lengths), jnp.where(written, to, jnp.int32(places))


def written(rows: StateRows, row: int, places: int) -> list[tuple[int, int]]:
    """What a row of numpy arrays writes of so many `places`: after how many of its tokens, and where to."""
    tokens = int(rows.query_start[row + 1] - rows.query_start[row])
    columns = rows.destination[row].tolist()
    after = [
        (int(rows.snapshot_at[row]), int(rows.snapshot[row])),
        *zip(range(tokens - len(columns) + 1, tokens + 1), columns, strict=True),
    ]
    return [(count, to) for count, to in after if count > 0 and to < places]


def few_tokens(tokens: int, rows: int, destinations: int) -> str | None:
    """Say why a step may have rows of many tokens, from T, R and W; None where it has decodes, or drafts to verify, alone."""
    if tokens > rows * destinations:
        return f"{tokens} tokens of {rows} rows are more than the {destinations} a row of decodes and drafts"
    return None


def require_rows(rows: StateRows, tokens: int) -> None:
    """Raise ValueError or TypeError unless the rows are of a step of so many tokens."""
    checks.require_shape("query_start", rows.query_start, (None,), "[R+1]")
    count = rows.query_start.shape[0] - 1
    checks.require_shape("row_of_token", rows.row_of_token, (tokens,), "[T]")
    for name in ("source", "snapshot", "snapshot_at"):
        checks.require_shape(name, getattr(rows, name), (count,), "[R]")
    checks.require_shape("destination", rows.destination, (count, None), "[R, W]")
    for name, array in rows._asdict().items():
        checks.require_dtype(name, array, (jnp.int32,))


def require_layer(states: jax.Array, layer: int) -> None:
    """Raise ValueError unless the table has this layer."""
    if not 0 <= layer < states.shape[0]:
        raise ValueError(f"layer must be between 0 and {states.shape[0] - 1}, got {layer}")
