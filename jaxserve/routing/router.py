"""Router: what decides where a request goes, and what it is told."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from jaxserve.types import ServiceClass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRequest:
    """What a router is told of a request.

    Attributes:
        id: unique among those in flight.
        pages: hashes of its prompt's full pages, in order, as the prefix cache chains them: from a root that stands for model,
            weights, adapter, tenant and salt. So prompts that may share pages, and only those, begin with the same hashes.
        page_size: tokens of a page.
        tokens: of the prompt.
        output_tokens: expected of it, all sequences together.
        tenant: whose it is.
        session: requests of the same tenant with the same session belong together; None if it is of none.
        service_class: its precedence.
        deadline: time by which it must have ended, of the clock that `Router.choose` is told.
    """

    id: str
    pages: tuple[bytes, ...]
    page_size: int
    tokens: int
    output_tokens: int
    tenant: str = ""
    session: str | None = None
    service_class: ServiceClass = ServiceClass.INTERACTIVE_PAID
    deadline: float = math.inf


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What a replica last said of itself.

    Attributes:
        running, waiting: sequences.
        pages_total, pages_free: of its KV cache.
        step_seconds: of its recent steps, typically; 0 before the first.
    """

    running: int = 0
    waiting: int = 0
    pages_total: int = 0
    pages_free: int = 0
    step_seconds: float = 0.0


class PageListener(Protocol):
    """Told what replicas hold of prompts, by the hashes of pages; replicas that are not there are passed over."""

    def stride(self, page_size: int) -> int:
        """Of the pages of a prompt it looks at the last one of every so many."""
        ...

    def stored(self, replica: str, pages: Iterable[bytes]) -> None:
        """A replica says that it holds these pages."""
        ...

    def removed(self, replica: str, pages: Iterable[bytes]) -> None:
        """A replica says that it holds these pages no more."""
        ...

    def cleared(self, replica: str) -> None:
        """A replica says that it holds nothing."""
        ...


class Router(Protocol):
    """Chooses replicas, and keeps what it needs for that of requests that did not end. Times are seconds of any one clock."""

    @property
    def pages(self) -> PageListener | None:
        """Who is to be told what replicas hold; None if that changes nothing. It must do without, too, and with less than all."""
        ...

    def join(self, replica: str, weight: float = 1.0) -> None:
        """A replica takes requests from now on; its speed, as a multiple of others'."""
        ...

    def leave(self, replica: str) -> None:
        """A replica takes no more, and what it ran is not its any more; one that is not there is passed over."""
        ...

    def observe(self, replica: str, load: ReplicaLoad, now: float) -> None:
        """A replica said how busy it is; one that is not there is passed over."""
        ...

    def choose(self, request: RoutingRequest, now: float, excluded: Collection[str] = ()) -> str | None:
        """The replica that takes it, which counts as its until `ended`; None if there is none but those `excluded`."""
        ...

    def started(self, request_id: str, now: float) -> None:
        """Its prompt is computed; one that is not in flight is passed over."""
        ...

    def ended(self, request_id: str, now: float) -> None:
        """It runs no more, for whatever reason; one that is not in flight is passed over."""
        ...
