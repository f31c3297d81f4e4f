"""How an operation finds its implementation: a table in the operation's folder, one line a backend kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import jax

Function = TypeVar("Function")


@dataclass(frozen=True, slots=True)
class Implementation(Generic[Function]):
    """One way to compute an operation.

    Attributes:
        name: what callers write to ask for it.
        function: takes the operation's arguments, already checked.
        platforms: jax platforms that it is chosen for when the caller names none; empty means every platform.
    """

    name: str
    function: Function
    platforms: frozenset[str] = frozenset()


def choose(operation: str, table: Sequence[Implementation[Function]], name: str | None) -> Function:
    """Return the function called `name`, or for None the first of `table` that suits the default backend.

    Raises:
        ValueError: there is no such implementation; the message lists those that exist.
    """
    platform = jax.default_backend()
    for entry in table:
        if entry.name == name or (name is None and (not entry.platforms or platform in entry.platforms)):
            return entry.function
    known = ", ".join(entry.name for entry in table)
    wanted = f"implementation {name!r}" if name is not None else f"implementation for platform {platform!r}"
    raise ValueError(f"{operation} has no {wanted}; it has: {known}")
