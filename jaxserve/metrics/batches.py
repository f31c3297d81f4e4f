"""Records batches: how many there are, and what becomes of their requests."""

from __future__ import annotations

from collections.abc import Mapping

from jaxserve.metrics import catalogue
from jaxserve.metrics.instruments import Instruments


class BatchRecorder:
    """Records the batches of a server."""

    def __init__(self, instruments: Instruments) -> None:
        self._batches = instruments.gauge(catalogue.BATCHES)
        self._requests = instruments.counter(catalogue.BATCH_REQUESTS)

    def stored(self, by_status: Mapping[str, int]) -> None:
        """So many batches of each status are stored."""
        for status, count in by_status.items():
            self._batches.labels(status).set(count)

    def lines(self, *, completed: int, failed: int) -> None:
        """So many more requests of batches have a reply, or an error."""
        for fate, count in (("completed", completed), ("failed", failed)):
            self._requests.labels(fate).inc(count)
