"""One exchange with a client, HTTP or gRPC, and the requests that it made of the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from jaxserve.engine.budgets import MAX_TENANT_CHARS
from jaxserve.engine.events import Delta, Event, Started
from server.tally import Tally


@dataclass(slots=True, eq=False)
class ObservedRequest:
    """One request to the engine. Times are of the monotonic clock, seconds; None has not come.

    Attributes:
        model: that it was made of.
        tally: its tokens, which who charges for them counts.
        queue: seconds in the engine's queue.
        first_token, last_token: when they came.
        reasons: why its sequences ended, as far as they did.
    """

    request_id: str
    tenant: str
    model: str
    tally: Tally
    began: float = field(default_factory=time.monotonic)
    queue: float = 0.0
    first_token: float | None = None
    last_token: float | None = None
    reasons: list[str] = field(default_factory=list)

    def saw(self, event: Event) -> None:
        if isinstance(event, Delta):
            self.last_token = time.monotonic()
        elif isinstance(event, Started):
            self.first_token = time.monotonic()
            self.queue = event.queue_time
        else:
            self.reasons.append(event.finish_reason.value)


@dataclass(slots=True, eq=False)
class Exchange:
    """One exchange.

    Attributes:
        surface: "http" or "grpc".
        method: GET, POST, ...; for gRPC the service's method.
        route: the path's template; for gRPC as `method`.
        tenant: whose it is, if that is known; what came of it or not.
        traceparent: W3C trace context that the client sent; empty for none.
        began, began_unix: when it began, by the monotonic clock and since 1970, seconds.
        status: HTTP status, or name of the gRPC status; empty until it is known.
        ended: when its last byte was handed over.
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
    generations: list[ObservedRequest] = field(default_factory=list)

    def name_tenant(self, tenant: str) -> None:
        """Say whose it is. Of what a client says for itself only so much is kept."""
        self.tenant = tenant[:MAX_TENANT_CHARS]
