"""In which order the requests of a window are asked. Pure functions: no request is tokenized for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from jaxserve.jobs.lines import Line

OrderName = Literal["file", "prefix"]

_KEY_BYTES = 2**14  # of a prompt that are compared


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that waits to be asked.

    Attributes:
        key: how its prompt begins, as JSON: what begins alike has the same tokens as far as that goes, or nearly.
    """

    line: Line
    size: int
    key: bytes

    @classmethod
    def of(cls, line: Line, size: int) -> Waiting:
        return cls(line, size, prompt_key(line.body))


def prompt_key(body: Mapping[str, Any]) -> bytes:
    prompt = body.get("messages", body.get("prompt", body.get("input")))
    return msgspec.json.encode(prompt)[:_KEY_BYTES]


def sequences(body: Mapping[str, Any]) -> int:
    """Sequences that a body asks for, as far as that can be told from one that may be unfit: prompts, n of each."""
    prompt, n = body.get("prompt", body.get("input")), body.get("n")
    many = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)  # others are tokens, or messages
    prompts = len(prompt) if isinstance(prompt, list) and many else 1
    return prompts * (n if isinstance(n, int) and n > 0 else 1)


def in_file_order(window: Sequence[Waiting]) -> list[Waiting]:
    return list(window)


def by_prefix(window: Sequence[Waiting]) -> list[Waiting]:
    """Requests whose prompts begin alike one after another, the more alike the nearer: sorted by how they begin."""
    return sorted(window, key=lambda one: one.key)


ORDERS: Mapping[OrderName, Callable[[Sequence[Waiting]], list[Waiting]]] = MappingProxyType(
    {"file": in_file_order, "prefix": by_prefix}
)
