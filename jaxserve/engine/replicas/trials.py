"""Trials of a fleet: requests whose engines ended run in one replica that gets nothing else meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxserve.engine.replicas.carried import CarriedRequest
from jaxserve.engine.replicas.replica import Replica
from jaxserve.engine.replicas.suspects import Suspects

TRIAL_TOKENS = 8  # a request that ended an engine resumes at the token that it did so at
TRIAL_SECONDS = 5.0
LONGEST = 2**5  # times both, for requests that were in many engines that ended


class FleetTrials:
    """Suspects of one API server, and the replica that some of them are tried in.

    Others of this server that the replica had before, and those of other servers, run beside a trial. So a request is only
    convicted when it was in an engine that ended before, and is alone on trial in another one that does.

    Attributes:
        replica: the trial's; None outside of trials.
    """

    def __init__(self) -> None:
        self.replica: Replica | None = None
        self._suspects = Suspects()
        self._requests: dict[str, CarriedRequest] = {}  # suspects by id
        self._tokens = 0
        self._until = 0.0

    @property
    def waiting(self) -> list[CarriedRequest]:
        """Suspects that wait for their trial."""
        held = self._suspects.held
        return [one for name, one in self._requests.items() if name in held]

    def lost(self, replica: Replica, requests: Sequence[CarriedRequest]) -> tuple[list[CarriedRequest], list[CarriedRequest]]:
        """A replica ended with these requests in it. Returns those that ended it, if known, and those that go on elsewhere.

        The others are suspects.
        """
        if replica is not self.replica:
            ordered = sorted(requests, key=lambda one: -one.progress)
            self._requests.update((one.id, one) for one in ordered)
            self._suspects.suspect([one.id for one in ordered])
            return [], []
        self.replica = None
        tried = [one.id for one in requests if one.id in self._suspects.trial]
        bystanders = [one for one in requests if one.id not in self._suspects.trial]
        guilty = [self._requests.pop(name) for name in self._suspects.died(tried)]
        return guilty, bystanders

    def begin(self, replica: Replica, now: float) -> list[CarriedRequest]:
        """The next trial, in a replica. Returns its requests."""
        trial = list(self._suspects.begin())
        times = min(2 ** max(self._suspects.deaths(trial) - 1, 0), LONGEST)
        self._tokens, self._until = TRIAL_TOKENS * times, now + TRIAL_SECONDS * times
        self.replica = replica if trial else None
        return [self._requests[name] for name in trial]

    @property
    def is_due(self) -> bool:
        """Whether a trial can begin."""
        return self.replica is None and self._suspects.any

    def ran(self, request: CarriedRequest) -> None:
        """A request got something."""
        if self.replica is not None and request.id in self._suspects.trial and request.has_run(self._tokens):
            self._close_if(self._suspects.passed(request.id))

    def ended(self, requests: Iterable[CarriedRequest]) -> None:
        """Requests are over, or go on without a trial."""
        for one in requests:
            if self._requests.pop(one.id, None) is not None:
                self._close_if(self._suspects.ended(one.id))

    def look(self, now: float) -> None:
        """End a trial that lasts long enough."""
        if self.replica is not None and now > self._until:
            self._suspects.clear_trial()
            self.replica = None

    def _close_if(self, over: bool) -> None:
        if over:
            self.replica = None
