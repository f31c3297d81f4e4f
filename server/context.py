"""Whose work is done: passed on from where a request comes in to where its job starts."""

from __future__ import annotations

from dataclasses import dataclass

from server.gateway.call import Call
from server.observe.exchange import Exchange


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What every surface knows of a request before it looks at what is asked.

    Attributes:
        call: what the work counts against and is billed to; None where nobody pays.
        exchange: what is told of it; None where nobody watches.
    """

    call: Call | None = None
    exchange: Exchange | None = None


NOBODY = RequestContext()
