"""Memory of one device: from shapes before anything is compiled, and with the compiler's own figures after."""

from __future__ import annotations

from dataclasses import dataclass

from jaxserve.config.resolve import WORKSPACE_BYTES, DeviceBytes
from jaxserve.errors import ConfigError

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledMemory:
    """Bytes on each device.

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
        return max(self.cache, 0) // self.token

    def require_room(self, tokens: int, *, target: str) -> None:
        """Check that there is room for a KV cache of this many tokens.

        Raises ConfigError: there is not; the message says how many GB are missing on each GPU and what takes them.
        """
        short = tokens * self.token - self.cache
        if short > 0:
            raise ConfigError(
                f"{target} is too small: {short / GB:.2f} GB short on each GPU. Of {self.memory / GB:.1f} GB, "
                f"{self.usable / GB:.1f} usable; weights take {self.weights / GB:.2f}, state {self.state / GB:.2f}, workspace "
                f"{self.temporary / GB:.2f}, and a KV cache of {tokens} tokens {tokens * self.token / GB:.2f}",
                param="target",
            )


def first_ledger(*, memory: int, usable: int, held: DeviceBytes, page_size: int, groups: int) -> CompiledMemory:
    """The ledger before compiling; a page is of one of the `groups` of layers."""
    return CompiledMemory(
        memory=memory,
        usable=usable,
        weights=held.weights,
        state=held.state,
        temporary=WORKSPACE_BYTES,
        token=held.page * groups // page_size,
    )
