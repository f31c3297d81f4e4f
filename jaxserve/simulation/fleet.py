"""Replicas behind a router, driven event by event: arrivals, turns of engines, retries, failures.

Events happen in order of time. An engine's turn is one event at its beginning; what it produced reaches clients, and the router,
at its end, so nobody acts on what has not happened yet.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from jaxserve.errors import JaxserveError, RefusedError
from jaxserve.routing.router import Router
from jaxserve.scheduler.request import Update
from jaxserve.simulation.ledger import Record, RequestLedger
from jaxserve.simulation.replica import Replica, ReplicaSpec, Totals
from jaxserve.simulation.routing import routing_request
from jaxserve.simulation.scaling import DRAIN_SECONDS, SAMPLE_SECONDS, FleetScaling
from jaxserve.simulation.settings import Outage
from jaxserve.workload.requests import WorkloadRequest
from jaxserve.workload.stats import Timeline

_OUTAGE, _SCALE, _ARRIVAL, _TURN = range(4)  # what comes first at one time: a request that arrives joins the turn that begins


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What clients do when they are refused.

    Attributes:
        retries: times they come back.
        backoff: seconds before the first time, doubled with each; at least what the server asks for; and up to twice that, so
            that clients do not come back together.
    """

    retries: int
    backoff: float

    def wait(self, attempt: int, asked: float, random: Random) -> float:
        """Seconds before retry `attempt` (counted from 1), `asked` being the server's retry-after."""
        return max(asked, self.backoff * 2.0 ** (attempt - 1)) * (1.0 + random.random())


class Fleet:
    """A simulation under way; `step` it until it is over.

    Attributes:
        now: seconds since the start.
        ledger, by_replica, timeline: what has happened so far; of replicas, by number, those of one number together.
        scaling: how many replicas there are; None if there are always as many.

    Args:
        router: chooses replicas, which it knows by their numbers; knows none yet.
        outages: failures of replicas.
        retry: what refused clients do.
        seed: of the jitter in retries.
    """

    def __init__(
        self,
        spec: ReplicaSpec,
        num_replicas: int,
        router: Router,
        outages: Sequence[Outage],
        requests: Iterator[WorkloadRequest],
        retry: RetryPolicy,
        seed: int,
        ledger: RequestLedger,
        timeline: Timeline,
        scaling: FleetScaling | None = None,
    ) -> None:
        self.now = 0.0
        self.ledger = ledger
        self.timeline = timeline
        self.scaling = scaling
        self.by_replica = [Totals() for _ in range(num_replicas)]
        self.spec = spec
        self._router = router
        self._retry = retry
        self._random = Random(f"retries {seed}")
        self._requests = requests
        self._more = True
        self._events: list[tuple[float, int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._replicas: list[Replica | None] = [None] * num_replicas
        for index in range(num_replicas if scaling is None else scaling.settings.min_replicas):
            if scaling is not None:
                scaling.take(index, self.now)
            self._recover(index)
        if scaling is not None:
            self._scale(scaling)
        for outage in outages:
            self._at(outage.start, _OUTAGE, partial(self._fail, outage.replica))
            if outage.end is not None:
                self._at(outage.end, _OUTAGE, partial(self._recover, outage.replica))
        self._expect_arrival()

    @property
    def totals(self) -> Totals:
        """What all replicas did."""
        total = Totals()
        for totals in self.by_replica:
            total.merge(totals)
        return total

    def step(self) -> bool:
        """Let the next event happen; False, changing nothing, once every request has ended."""
        if not self._more and not self.ledger.active:
            return False
        time, _, _, action = heapq.heappop(self._events)
        assert time >= self.now, "time goes back"
        self.now = time
        action()
        return True

    def _at(self, time: float, rank: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, rank, next(self._order), action))

    def _expect_arrival(self) -> None:
        """Take one request ahead from the workload, however long it is."""
        request = next(self._requests, None)
        if request is None:
            self._more = False
        else:
            self._at(request.arrival, _ARRIVAL, partial(self._arrive, request))

    def _arrive(self, request: WorkloadRequest) -> None:
        record = self.ledger.receive(request, self.now)
        self._expect_arrival()
        self._route(record)

    def _come_back(self, record: Record) -> None:
        self.ledger.retries += 1
        self._route(record)

    def _route(self, record: Record) -> None:
        name = self._router.choose(routing_request(record, self.spec, self.now), self.now)
        if name is None:
            self.ledger.fail(record, None, self.now)
            return
        replica = self._replicas[int(name)]
        assert replica is not None, f"the router chose replica {name}, which is gone"
        replica.give(record)
        self.ledger.enters(record, self.now)
        if not replica.awake:
            self._wake(replica, self.now)

    def _wake(self, replica: Replica, time: float) -> None:
        replica.awake = True
        self._at(time, _TURN, partial(self._turn, replica))

    def _turn(self, replica: Replica) -> None:
        if self._replicas[replica.index] is not replica:  # it failed meanwhile
            return
        replica.awake = False
        held = replica.take_held()
        self._tell_router(held)
        errors = self.ledger.deliver(held, self.now)
        for record, error in [*errors, *replica.take_inbox(self.now)]:
            self._ended(record, error)
        over = replica.step()
        self._router.observe(str(replica.index), replica.load(), self.now)
        if over is not None:
            self._wake(replica, max(over, self.now))  # a clock that is moved by differences is an ulp off

    def _tell_router(self, updates: Iterable[Update]) -> None:
        """Of what a turn produced, before clients have it."""
        for update in updates:
            if update.token is not None and self.ledger.active[update.id].waiting:
                self._router.started(update.id, self.now)
            if update.finish_reason is not None:
                self._router.ended(update.id, self.now)

    def _ended(self, record: Record, error: JaxserveError) -> None:
        """An engine ended it, or did not take it; its client comes back if it was told when."""
        self._router.ended(record.id, self.now)
        if not isinstance(error, RefusedError) or error.retry_after is None:
            self.ledger.fail(record, error, self.now)
            return
        self.ledger.refusal(record, error, self.now)
        if record.attempts > self._retry.retries:
            self.ledger.give_up(record, error, self.now)
            return
        wait = self._retry.wait(record.attempts, error.retry_after, self._random)
        self._at(self.now + wait, _ARRIVAL, partial(self._come_back, record))

    def _fail(self, index: int) -> None:
        """A replica is gone at once; its requests go on in others."""
        replica = self._replicas[index]
        if replica is None:
            return
        self._replicas[index] = None
        self._router.leave(str(index))
        for record in replica.write_off():
            self.ledger.fail_over(record, self.now)
            self._route(record)

    def _recover(self, index: int) -> None:
        if self._replicas[index] is None:
            self._replicas[index] = Replica(index, self.spec, self.now, self.by_replica[index], self.timeline)
            self._router.join(str(index))

    def _scale(self, scaling: FleetScaling) -> None:
        """Ask how many replicas there should be, and begin with it; again in a second."""
        now = self.now
        for index in list(scaling.draining):
            self._let_go(scaling, index)
        ready = [one for one in self._replicas if one is not None and one.index not in scaling.draining]
        target = scaling.decide(now, [one.demand(now) for one in ready])
        missing = target - len(ready) - len(scaling.starting)
        for index in scaling.free()[: max(missing, 0)]:
            scaling.take(index, now)
            scaling.starting[index] = due = now + scaling.settings.start_seconds
            self._at(due, _SCALE, partial(self._begin, scaling, index, due))
        for index in list(scaling.starting)[: max(-missing, 0)]:
            scaling.release(index, now)
        spare = sorted(ready, key=lambda one: len(one.assigned))[: max(len(ready) + len(scaling.starting) - target, 0)]
        for replica in spare:
            self._router.leave(str(replica.index))
            scaling.draining[replica.index] = now
        levels = {"ready": len(ready) - len(spare), "starting": len(scaling.starting), "draining": len(scaling.draining)}
        self.timeline.level(now, {name: float(count) for name, count in levels.items()}, SAMPLE_SECONDS)
        self._at(now + SAMPLE_SECONDS, _SCALE, partial(self._scale, scaling))

    def _begin(self, scaling: FleetScaling, index: int, due: float) -> None:
        """A replica has started, unless it was not wanted any more."""
        if scaling.starting.get(index) == due:
            del scaling.starting[index]
            self._recover(index)

    def _let_go(self, scaling: FleetScaling, index: int) -> None:
        """End a replica that drains, once it has nothing left; what it could not end in time goes on elsewhere."""
        replica = self._replicas[index]
        assert replica is not None, "a replica that drains is there"
        if self.now - scaling.draining[index] >= DRAIN_SECONDS:
            self._fail(index)
        elif not replica.assigned and not replica.awake:
            self._replicas[index] = None
        if self._replicas[index] is None:
            scaling.release(index, self.now)
