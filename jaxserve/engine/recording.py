"""From a request's events to its metrics."""

from __future__ import annotations

from collections.abc import Iterable

from jaxserve.engine.events import Delta, Event, Started
from jaxserve.metrics.requests import RequestRecord


def record_events(record: RequestRecord, events: Iterable[Event], now: float) -> None:
    """Record events of one request that came at `now`, by the clock of its arrival."""
    for event in events:
        if isinstance(event, Delta):
            record.tokens(event.index, len(event.token_ids), now)
        elif isinstance(event, Started):
            record.started(len(event.prompt_token_ids), event.queue_time, now)
        else:
            record.ended(event.index, event.reason.value, now)
