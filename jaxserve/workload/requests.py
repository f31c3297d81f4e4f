"""A simulated request and the tokens that stand for its prompt."""

from __future__ import annotations

from dataclasses import dataclass

from jaxserve.types import RequestOptions, ServiceClass

_FIRST_OWN_TOKEN = 2**24  # apart from the numbers of prefixes, so that no prompt looks like another's prefix


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """What a client asks for.

    Attributes:
        number: counted from 0, unique in a run.
        arrival: seconds since the start.
        prompt_tokens, output_tokens: lengths; every output token is generated.
        prefix: number of the shared prefix that the prompt begins with, or None.
        prefix_tokens: its length, shorter than the prompt; 0 without a prefix.
        queue_timeout, timeout: seconds to its start and to its end at most; None takes its class's.
    """

    number: int
    arrival: float
    prompt_tokens: int
    output_tokens: int
    service_class: ServiceClass
    tenant: str = "default"
    prefix: int | None = None
    prefix_tokens: int = 0
    queue_timeout: float | None = None
    timeout: float | None = None

    @property
    def options(self) -> RequestOptions:
        return RequestOptions(
            tenant=self.tenant,
            service_class=self.service_class,
            queue_timeout=self.queue_timeout,
            timeout=self.timeout,
        )

    def tokens(self) -> tuple[int, ...]:
        """Token ids: equal to another request's in a shared prefix, different from all others' after it."""
        shared = () if self.prefix is None else (self.prefix + 1,) * self.prefix_tokens
        own = self.prompt_tokens - len(shared)
        return shared + (_FIRST_OWN_TOKEN + self.number,) + (0,) * (own - 1)
