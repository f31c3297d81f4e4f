"""Promises: times to the first token and between tokens that interactive requests have, and how many were not kept lately.

A fleet's size follows from it, so it forgets: what was `MEMORY_SECONDS` ago counts for a third.
"""

from __future__ import annotations

import math

from jaxserve.scheduler.request import EngineRequest, Sequence
from jaxserve.types import ServiceClass

MEMORY_SECONDS = 30.0


class Promises:
    """Counts promises as they come due.

    Args:
        first_token: seconds to the first token; 0 for no promise.
        between: seconds between a sequence's tokens, in the mean; 0 for no promise.
    """

    def __init__(self, first_token: float, between: float) -> None:
        self._first_token = first_token
        self._between = between
        self._made = 0.0
        self._broken = 0.0
        self._time = 0.0

    def first_token(self, request: EngineRequest, now: float) -> None:
        if self._first_token and _is_promised(request):
            self._due(now - request.arrival > self._first_token, now)

    def ended(self, sequence: Sequence, now: float) -> None:
        """A sequence ended by itself. One whose first token came elsewhere, or was the only one, was promised nothing."""
        gaps = sequence.num_output - 1
        if self._between and sequence.first_token is not None and gaps > 0 and _is_promised(sequence.request):
            self._due(now - sequence.first_token > gaps * self._between, now)

    def refused(self, request: EngineRequest, now: float) -> None:
        """A request was not taken."""
        if _is_promised(request):
            self._due(True, now)

    def refused_at_gate(self, count: int, now: float) -> None:
        """Interactive requests were not even looked at."""
        for _ in range(count):
            self._due(True, now)

    def lately(self, now: float) -> tuple[float, float]:
        """Promises that came due, and those that were not kept."""
        self._fade(now)
        return self._made, self._broken

    def _due(self, broken: bool, now: float) -> None:
        self._fade(now)
        self._made += 1.0
        self._broken += broken

    def _fade(self, now: float) -> None:
        passed, self._time = max(now - self._time, 0.0), now
        kept = math.exp(-passed / MEMORY_SECONDS)
        self._made *= kept
        self._broken *= kept


def _is_promised(request: EngineRequest) -> bool:
    return request.service_class is not ServiceClass.BATCH and not request.resumed
