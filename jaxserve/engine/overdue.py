"""A request's deadlines where its stream is: they hold although the engine, which keeps them as well, may stand still."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jaxserve.scheduler.admission import late_end, late_start
from jaxserve.scheduler.request import EngineRequest

GRACE_SECONDS = 0.5  # for the engine, which knows best what became of a request, and whose word is on its way


@dataclass(frozen=True, slots=True)
class Promise:
    """By when a request must have started and ended.

    Attributes:
        handed: time at which the engine was given it, by the machine's monotonic clock.
        stalled_seconds: without a turn after which an engine counts as hanging.
    """

    request: EngineRequest
    handed: float
    stalled_seconds: float

    def excused(self) -> Promise:
        """The same without a time to start: there was no engine for a while."""
        return replace(self, request=replace(self.request, queue_deadline=math.inf))

    def check(self, now: float, heartbeat: float, *, started: bool) -> None:
        """Raise DeadlineError for what the engine should have ended long ago.

        An engine that has not turned since it was given a request cannot have begun it. Once it has, only the engine knows: the
        first token of a long prompt may be several steps away. Then a late start is said of a hanging engine only.

        Args:
            now: the time.
            heartbeat: that of the engine's latest turn.
            started: whether the request gave a token.
        """
        request = self.request
        late = now - GRACE_SECONDS
        if late > request.deadline:
            raise late_end(request, now)
        unseen = heartbeat < self.handed or now - heartbeat > self.stalled_seconds
        if late > request.queue_deadline and not started and unseen:
            raise late_start(request, now)
