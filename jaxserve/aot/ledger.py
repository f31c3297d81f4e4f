"""Memory of one GPU: from shapes before anything is compiled, and with the compiler's own figures after."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax

from jaxserve.config.resolve import WORKSPACE_BYTES
from jaxserve.errors import ConfigError

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Bytes on each GPU.

    Attributes:
        memory: what the driver gives to programs.
        usable: the share of it that the engine takes.
        weights: parameters.
        state: what else lives from step to step (the sampler's tables, the last hidden states).
        temporary: workspace of the largest program; before compiling, what the engine keeps for it.
        token: KV cache of one token.
    """

    memory: int
    usable: int
    weights: int
    state: int
    temporary: int
    token: int

    @property
    def cache(self) -> int:
        """What remains for the KV cache; negative if the rest does not fit."""
        return self.usable - self.weights - self.state - self.temporary

    @property
    def tokens(self) -> int:
        """How many tokens the KV cache holds then."""
        return max(self.cache, 0) // self.token

    def require_room(self, tokens: int, *, target: str) -> None:
        """Check that the KV cache holds a sequence of this many tokens.

        Raises:
            ConfigError: it does not; the message says how many GB are missing on each GPU and what takes them.
        """
        short = tokens * self.token - self.cache
        if short > 0:
            raise ConfigError(
                f"{target} is too small: {short / GB:.2f} GB short on each GPU. Of {self.memory / GB:.1f} GB, "
                f"{self.usable / GB:.1f} usable; weights take {self.weights / GB:.2f}, state {self.state / GB:.2f}, workspace "
                f"{self.temporary / GB:.2f}, and the KV cache of one sequence of {tokens} tokens {tokens * self.token / GB:.2f}",
                param="target",
            )


def first_ledger(*, memory: int, fraction: float, params: Any, state: Any, kv_pages: Any, page_size: int) -> Ledger:
    """The ledger before compiling, from trees of jax.ShapeDtypeStructs; `state` includes `kv_pages`."""
    cache = device_bytes(kv_pages)
    tokens = kv_pages.shape[1] * page_size
    return Ledger(
        memory=memory,
        usable=int(memory * fraction),
        weights=device_bytes(params),
        state=device_bytes(state) - cache,
        temporary=WORKSPACE_BYTES,
        token=cache // tokens,
    )


def device_bytes(tree: Any) -> int:
    """Bytes that one device holds of a tree of shapes with shardings."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
