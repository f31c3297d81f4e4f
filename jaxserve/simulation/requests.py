"""A simulated request and the tokens that stand for its prompt."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_OWN_TOKEN = 2**24  # apart from the numbers of prefixes, so that no prompt looks like another's prefix


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """What a client asks for.

    Attributes:
        number: counted from 0, unique in a run.
        arrival: seconds since the start.
        prompt_tokens, output_tokens: lengths; every output token is generated.
        tenant: who asks.
        label: the trace's "class"; reports are broken down by it and nothing else looks at it.
        prefix: number of the shared prefix that the prompt begins with, or None.
        prefix_tokens: its length, shorter than the prompt; 0 without a prefix.
    """

    number: int
    arrival: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = "default"
    label: str = ""
    prefix: int | None = None
    prefix_tokens: int = 0

    def tokens(self) -> tuple[int, ...]:
        """Token ids: equal to another request's in a shared prefix, different from all others' after it."""
        shared = () if self.prefix is None else (self.prefix + 1,) * self.prefix_tokens
        own = self.prompt_tokens - len(shared)
        return shared + (_FIRST_OWN_TOKEN + self.number,) + (0,) * (own - 1)
