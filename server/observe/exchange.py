"""One exchange with a client, HTTP or gRPC, and the requests that it made of the engine."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from jaxserve.engine.budgets import MAX_TENANT_CHARS
from jaxserve.engine.events import Delta, Event, Started


@dataclass(slots=True, eq=False)
class Generation:
    """One request to the engine. Times are of the monotonic clock, seconds; None has not come.

    Attributes:
        request_id: the engine's name for it.
        tenant: whose it is.
        began: when it was handed over.
        queue: seconds in the engine's queue.
        first_token, last_token: when they came.
        prompt_tokens, cached_tokens, output_tokens: of all its sequences.
        reasons: why its sequences ended, as far as they did.
    """

    request_id: str
    tenant: str
    began: float = field(default_factory=time.monotonic)
    queue: float = 0.0
    first_token: float | None = None
    last_token: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasons: list[str] = field(default_factory=list)

    def saw(self, event: Event) -> None:
        """Note an event of the request."""
        if isinstance(event, Delta):
            self.output_tokens += len(event.token_ids)
            self.last_token = time.monotonic()
        elif isinstance(event, Started):
            self.first_token = time.monotonic()
            self.queue = event.queue_time
            self.prompt_tokens, self.cached_tokens = len(event.prompt_token_ids), event.cached_tokens
        else:
            self.reasons.append(event.reason.value)


@dataclass(slots=True, eq=False)
class Exchange:
    """One exchange.

    Attributes:
        surface: "http" or "grpc".
        method: GET, POST, ...; for gRPC the service's method.
        route: the path's template; for gRPC as `method`.
        request_id: the X-Request-Id.
        tenant: whose it is, if that is known; what came of it or not.
        traceparent: W3C trace context that the client sent; empty for none.
        began, began_unix: when it began, by the monotonic clock and since 1970, seconds.
        status: HTTP status, or name of the gRPC status; empty until it is known.
        ended: when its last byte was handed over.
        generations: what it asked of the engine.
    """

    surface: str
    method: str
    route: str
    request_id: str
    tenant: str = ""
    traceparent: str = ""
    began: float = field(default_factory=time.monotonic)
    began_unix: float = field(default_factory=time.time)
    status: str = ""
    ended: float = 0.0
    generations: list[Generation] = field(default_factory=list)


# The exchange that a task works for, set where its first byte arrives.
EXCHANGE: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


def generation(request_id: str, tenant: str) -> Generation:
    """A request to the engine for the exchange that this task works for, if it does for one."""
    begun = Generation(request_id, tenant)
    exchange = EXCHANGE.get()
    if exchange is not None:
        exchange.generations.append(begun)
    return begun


def name_exchange(request_id: str) -> None:
    """Say what the exchange that this task works for is called, where that is found out further in."""
    exchange = EXCHANGE.get()
    if exchange is not None:
        exchange.request_id = request_id


def name_tenant(tenant: str) -> None:
    """Say whose the exchange is that this task works for. Of what a client says for itself only so much is kept."""
    exchange = EXCHANGE.get()
    if exchange is not None:
        exchange.tenant = tenant[:MAX_TENANT_CHARS]
