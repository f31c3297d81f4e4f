"""Rows of logits a few at a time, where computing with all of them at once would take too much memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

BYTES = 2 << 20  # of the logits computed with at once


def in_blocks(function: Callable[..., jax.Array], logits: jax.Array, *arguments: Any) -> jax.Array:
    """What `function` makes of logits f32[R, C] and other arguments, called for at most `BYTES` of logits at a time.

    What a sampler computes with is several times as large as its logits, which are 16 MB for 32 rows and 128K tokens. XLA gets
    the workspace of a step from malloc, and above 32 MiB malloc gets it from the operating system, anew at every step.

    Args:
        function: of rows: no row of its result [R, ...] depends on another row.
        logits: what it is first given.
        *arguments: trees of arrays [R, ...], and of scalars, which are the same for all rows.
    """
    count = logits.shape[0]
    most = max(BYTES // (logits.nbytes // count), 1)
    block = max(rows for rows in range(1, min(most, count) + 1) if count % rows == 0)
    if block == count:
        return function(logits, *arguments)
    leaves, structure = jax.tree.flatten((logits, *arguments))

    def call(rows: list[jax.Array]) -> jax.Array:
        following = iter(rows)
        return function(*jax.tree.unflatten(structure, [next(following) if leaf.ndim else leaf for leaf in leaves]))

    result: jax.Array = lax.map(call, [leaf.reshape(-1, block, *leaf.shape[1:]) for leaf in leaves if leaf.ndim])
    return result.reshape(count, *result.shape[2:])
