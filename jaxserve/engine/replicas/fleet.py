"""FleetLink: an EngineLink to many engines, of which any may die, hang, come and go."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from jaxserve.engine.activity import Lateness
from jaxserve.engine.calls import EngineCall
from jaxserve.engine.death import EngineDeath, latest
from jaxserve.engine.link import EngineDescription, EngineLoad, HeldChange, LinkSink
from jaxserve.engine.loop import Refusal, TurnOutcome
from jaxserve.engine.remote.link import RemoteLink
from jaxserve.engine.replicas.carried import CarriedRequest, CarriedSequence, routing_request
from jaxserve.engine.replicas.placement import Placement
from jaxserve.engine.replicas.replica import Endpoint, Replica, ReplicaLink
from jaxserve.engine.replicas.sameness import difference
from jaxserve.engine.replicas.stragglers import Stragglers
from jaxserve.engine.replicas.trials import FleetTrials
from jaxserve.errors import EngineDeadError, EngineKilledError, JaxserveError, OverloadedError, QueueFullError
from jaxserve.metrics.fleet import FleetRecorder
from jaxserve.routing.router import PageListener, ReplicaLoad, Router
from jaxserve.scheduler.estimates import OutputLengths
from jaxserve.scheduler.request import EngineRequest

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1  # between looks at the replicas
HELD_UP = 0.5  # seconds that a look may come late: beyond that, what engines had to say may be there, unread


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """How patient a fleet is.

    Attributes:
        hang_seconds: without a word, or beyond the expected time of a step, after which an engine's streams go on elsewhere.
        wait_seconds: that a request waits for a replica where there is none, or none that has room to go on with it.
        drain_seconds: that the requests of a replica which leaves may take to end; then they go on elsewhere.
        slow_factor, slow_seconds, quarantine_seconds: see Stragglers.
    """

    hang_seconds: float = 1.5
    wait_seconds: float = 30.0
    drain_seconds: float = 30.0
    slow_factor: float = 3.0
    slow_seconds: float = 10.0
    quarantine_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What is known of a replica: whether it takes requests, or why it does not; sequences that it has of this front end."""

    ready: bool
    reason: str
    sequences: int


def remote(endpoint: Endpoint) -> ReplicaLink:
    return RemoteLink(endpoint.address, endpoint.key)


class FleetLink:
    """An EngineLink over many; see there. Belongs to the event loop that it is made in.

    A stream whose engine is lost goes on in another one, with the tokens that it would have had. The sink hears of it only if
    there is none for too long. If the engine ended, its requests are tried apart first (`FleetTrials`).

    Args:
        router: says which replica takes a request; nobody else uses it.
        recorder: counts what happens; by default nobody reads it.
        link: makes the link to an engine.
    """

    def __init__(
        self,
        router: Router,
        settings: FleetSettings | None = None,
        *,
        recorder: FleetRecorder | None = None,
        link: Callable[[Endpoint], ReplicaLink] = remote,
    ) -> None:
        self._settings = settings = settings or FleetSettings()
        self._recorder = recorder or FleetRecorder.unread()
        self._link = link
        self._stragglers = Stragglers(settings.slow_factor, settings.slow_seconds, settings.quarantine_seconds)
        self._placement = Placement(router)
        self._router = router
        self._loop = asyncio.get_running_loop()
        self._sink: LinkSink | None = None
        self._members: dict[str, Replica] = {}
        self._leaving: list[Replica] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._sequences: dict[str, tuple[CarriedRequest, CarriedSequence]] = {}  # by the ids that the sink knows
        self._waiting: dict[str, CarriedRequest] = {}  # by the id of their first sequence
        self._trials = FleetTrials()
        self._lengths = OutputLengths()
        self._reference: EngineDescription | None = None
        self._description: asyncio.Future[EngineDescription] = self._loop.create_future()
        self._failure: JaxserveError | None = EngineDeadError("no replica has started", retry_after=1.0)
        self._alone_since = time.monotonic()
        self._reason = "none was found"
        self._looks = self._loop.call_later(LOOK_SECONDS, self._look)

    async def described(self) -> EngineDescription:
        """Wait for a replica, and what all of them say of themselves."""
        return await asyncio.shield(self._description)

    @property
    def heartbeat(self) -> float:
        """The latest of any."""
        return max((one.link.heartbeat for one in self._all()), default=float("-inf"))

    def lateness(self, now: float) -> Lateness:
        """That of the replica that is least late."""
        found = (one.link.lateness(now) for one in self._all() if one.connected)
        return min(found, key=lambda one: one.worst, default=Lateness())

    @property
    def death(self) -> EngineDeath | None:
        """The latest of any that is still known here."""
        return latest(one.link.death for one in self._all())

    @property
    def replicas(self) -> Mapping[str, ReplicaState]:
        """All that were set, by id."""
        quarantined = self._stragglers.quarantined
        return {
            name: ReplicaState(
                one.ready and name not in quarantined,
                "it is much slower than the others" if one.ready and name in quarantined else one.reason,
                len(one.sequences),
            )
            for name, one in self._members.items()
        }

    def set_replicas(self, endpoints: Mapping[str, Endpoint]) -> None:
        """These are the engines from now on. One that is not among them any more takes nothing new, and ends what it has."""
        for name, replica in list(self._members.items()):
            if endpoints.get(name) != replica.endpoint:
                del self._members[name]
                self._withdraw(replica, "it leaves the fleet")
                replica.leave_by = time.monotonic() + self._settings.drain_seconds
                self._leaving.append(replica)
        for name, endpoint in endpoints.items():
            if name not in self._members:
                self._members[name] = Replica(name, endpoint, self._link(endpoint), self)
        self._let_go(time.monotonic())

    def connect(self, sink: LinkSink) -> None:
        self._sink = sink
        if self._failure is not None:
            sink.lost(self._failure)

    def add(self, requests: Sequence[EngineRequest]) -> None:
        if self._failure is not None or self._reference is None:  # the sink was told
            return
        expected = sum(self._lengths.expected(one) for one in requests)
        carried = CarriedRequest(requests, routing_request(requests, self._reference.rules.page_size, expected))
        carried.wait_until = time.monotonic() + self._settings.wait_seconds
        self._sequences.update((name, (carried, one)) for name, one in carried.sequences.items())
        self._put(carried)

    def abort(self, ids: Sequence[str]) -> None:
        for name in ids:
            found = self._sequences.get(name)
            if found is None:
                continue
            carried, sequence = found
            if carried.replica is not None:
                carried.replica.link.abort([carried.id_of(sequence)])
            sequence.ended = True
            self._over(carried, sequence)
        self._try_next()

    def demote(self, ids: Sequence[str], *, demoted: bool) -> None:
        for name in ids:
            found = self._sequences.get(name)
            if found is None:
                continue
            carried, sequence = found
            sequence.demoted = demoted
            if carried.replica is not None:
                carried.replica.link.demote([carried.id_of(sequence)], demoted=demoted)

    async def call(self, call: EngineCall[Result]) -> Result:
        """Ask every replica; one that is lost meanwhile is left out, unless it is a call for all."""
        asked, away = {}, [one.id for one in self._members.values() if not one.ready]
        if call.is_for_all and away:
            raise EngineDeadError(f"not all replicas are there: {', '.join(away)}", retry_after=1.0)
        for one in self._members.values():
            if one.ready:
                asked[one.id] = asyncio.ensure_future(one.link.call(call))
                one.calls.add(asked[one.id])
                asked[one.id].add_done_callback(one.calls.discard)
        found = await asyncio.gather(*asked.values(), return_exceptions=True)
        answers: list[Result] = []
        for answer in found:
            if isinstance(answer, EngineDeadError | asyncio.CancelledError) and not call.is_for_all:
                continue
            if isinstance(answer, asyncio.CancelledError):
                raise EngineDeadError("a replica was lost meanwhile: ask all of them again", retry_after=1.0)
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)
        if not answers:
            raise self._failure.copy() if self._failure is not None else EngineDeadError("no replica is there", retry_after=1.0)
        return call.merged(answers)

    def load(self) -> EngineLoad:
        """The sum; steps are as long as the slowest replica's."""
        loads = [one.link.load() for one in self._all()]
        return EngineLoad(
            running=sum(one.running for one in loads),
            waiting=sum(one.waiting for one in loads)
            + sum(len(one.unfinished) for one in (*self._waiting.values(), *self._trials.waiting)),
            pages_total=sum(one.pages_total for one in loads),
            pages_free=sum(one.pages_free for one in loads),
            preemptions=sum(one.preemptions for one in loads),
            lost_tokens=sum(one.lost_tokens for one in loads),
            prefix_queried_tokens=sum(one.prefix_queried_tokens for one in loads),
            prefix_hit_tokens=sum(one.prefix_hit_tokens for one in loads),
            step_seconds=max((one.step_seconds for one in loads), default=0.0),
            page_size=max((one.page_size for one in loads), default=0),
            imbalance=self._imbalance(),
        )

    def _imbalance(self) -> float:
        """Sequences of the replica that has most, over the mean of those that take requests; 0 where nothing runs."""
        loads = [one.link.load() for one in self._members.values() if one.ready]
        sequences = [one.running + one.waiting for one in loads]
        return max(sequences) * len(sequences) / sum(sequences) if any(sequences) else 0.0

    async def close(self) -> None:
        self._looks.cancel()
        for replica in self._all():
            self._withdraw(replica, "the fleet is closed")
        self._fail(EngineDeadError("the link to the engines is closed"))
        await asyncio.gather(*(one.link.close() for one in self._all()), *self._closing)

    def give_up(self, error: JaxserveError) -> None:
        """There will be no engine any more."""
        self.set_replicas({})
        self._fail(error)

    # What replicas say.

    def delivered(self, replica: Replica, outcomes: Sequence[TurnOutcome]) -> None:
        told: list[TurnOutcome] = []
        for outcome in outcomes:
            name = outcome.ids[0] if isinstance(outcome, Refusal) else outcome.id
            found = replica.sequences.get(name)
            if found is None:  # it went on elsewhere, or nobody wants it any more
                continue
            carried, sequence = found
            if isinstance(outcome, Refusal):
                told += self._refused(replica, carried, outcome.error)
                continue
            sequence.took(outcome)
            carried.begun = True
            if outcome.token is not None and not carried.started:
                carried.started = True
                self._router.started(carried.routing.id, time.monotonic())
            if carried.moves:
                outcome = replace(outcome, id=sequence.request.id, resumed=carried.moves)
            if carried.deaths:
                self._trials.ran(carried)
            if sequence.ended:
                if outcome.error is None:
                    self._lengths.observe(sequence.request, len(sequence.output))
                self._over(carried, sequence)
            told.append(outcome)
        if told and self._sink is not None:
            self._sink.deliver(told)
        self._try_next()

    def replica_found(self, replica: Replica, description: EngineDescription) -> None:
        replica.since = time.monotonic()
        if self._reference is not None and (reason := difference(self._reference, description)) is not None:
            logger.error("replica %s at %s cannot join the fleet: %s", replica.id, replica.endpoint.address, reason)
            replica.reason = reason
            return
        self._reference = self._reference or description
        self._welcome(replica)

    def replica_lost(self, replica: Replica, error: JaxserveError) -> None:
        if replica.ready:
            logger.error("replica %s is lost: %s", replica.id, error.message)
            self._recorder.lost()
        self._withdraw(replica, error.message)
        replica.hung = False
        if isinstance(error, EngineDeadError):
            self._suspect_all(replica)
        else:
            self._move_all(replica)

    # Who is there.

    def _welcome(self, replica: Replica) -> None:
        """It takes requests from now on, unless it leaves; first those that have none."""
        replica.hung = False
        if replica.leave_by is not None:
            return
        replica.ready, replica.reason = True, ""
        self._router.join(replica.id, replica.endpoint.weight)
        self._recorder.replicas(self._num_ready)
        assert self._reference is not None, "a replica that joins is described"
        listener = self._router.pages
        if listener is not None:
            every = listener.stride(self._reference.rules.page_size)
            replica.link.watch(every, partial(self._holds, replica.id, listener))
        if not self._description.done():
            self._description.set_result(self._reference)
        if self._failure is not None:
            self._failure = None
            if self._sink is not None:
                self._sink.found(self._reference)
        self._put_waiting()
        self._try_next()

    @staticmethod
    def _holds(replica: str, listener: PageListener, change: HeldChange) -> None:
        """A replica's cache changed; a router that it left passes that over."""
        if change.cleared:
            listener.cleared(replica)
        if change.removed:
            listener.removed(replica, change.removed)
        if change.stored:
            listener.stored(replica, change.stored)

    def _withdraw(self, replica: Replica, reason: str) -> None:
        """It takes nothing new."""
        replica.reason = reason
        if replica.ready:
            replica.ready, self._reason = False, reason
            self._router.leave(replica.id)
            self._recorder.replicas(self._num_ready)
            if not self._num_ready:
                self._alone_since = time.monotonic()

    @property
    def _num_ready(self) -> int:
        return sum(one.ready for one in self._members.values())

    def _all(self) -> list[Replica]:
        return [*self._members.values(), *self._leaving]

    # Where requests go.

    def _put(self, carried: CarriedRequest) -> None:
        """Hand a request to a replica, or let it wait for one."""
        ready, trial = self._ready(), self._trials.replica
        reserved = None if trial is None else trial.id
        chosen = self._placement.choose(carried, ready, self._stragglers.quarantined, time.monotonic(), reserved)
        if chosen is None:
            self._waiting[carried.routing.id] = carried
        else:
            self._waiting.pop(carried.routing.id, None)
            self._members[chosen].take(carried)

    def _ready(self) -> dict[str, EngineLoad]:
        return {name: one.link.load() for name, one in self._members.items() if one.ready}

    def _put_waiting(self) -> None:
        for carried in list(self._waiting.values()):
            carried.tried.clear()
            self._put(carried)

    def _refused(self, replica: Replica, carried: CarriedRequest, error: JaxserveError) -> list[TurnOutcome]:
        """One replica did not take a request: perhaps another does, else the sink is told."""
        replica.forget(carried)
        self._trials.ended([carried])
        self._router.ended(carried.routing.id, time.monotonic())
        carried.replica, carried.refusal = None, error
        carried.tried.add(replica.id)
        elsewhere = isinstance(error, QueueFullError | OverloadedError | EngineDeadError)
        if elsewhere and (carried.moves or (len(carried.tried) == 1 and self._another_has_room(carried))):
            self._recorder.rerouted()
            self._put(carried)
            return []
        return [self._refusal(carried, error)]

    def _another_has_room(self, carried: CarriedRequest) -> bool:
        assert self._reference is not None, "what is refused was sent somewhere"
        room = self._reference.scheduler.max_waiting - len(carried.unfinished)
        others = [one for one in self._members.values() if one.ready and one.id not in carried.tried]
        return any(one.link.load().waiting <= room for one in others)

    def _refusal(self, carried: CarriedRequest, error: JaxserveError) -> Refusal:
        """Nobody takes what is left of a request."""
        self._waiting.pop(carried.routing.id, None)
        self._trials.ended([carried])
        ids = tuple(one.request.id for one in carried.unfinished)
        for name in ids:
            del self._sequences[name]
        return Refusal(ids, error)

    def _over(self, carried: CarriedRequest, sequence: CarriedSequence) -> None:
        """A sequence ended."""
        del self._sequences[sequence.request.id]
        if carried.replica is not None:
            del carried.replica.sequences[carried.id_of(sequence)]
        if not carried.unfinished:
            self._waiting.pop(carried.routing.id, None)
            self._trials.ended([carried])
            self._router.ended(carried.routing.id, time.monotonic())

    def _move_all(self, replica: Replica) -> None:
        """What a replica had goes on elsewhere."""
        left = self._given_up(replica)
        self._trials.ended(left)
        for carried in left:
            self._put(carried)

    def _given_up(self, replica: Replica) -> list[CarriedRequest]:
        """What a replica had, ready for another one."""
        left = replica.give_up()
        for carried in left:
            now = time.monotonic()
            self._router.ended(carried.routing.id, now)
            carried.moved(now + self._settings.wait_seconds)
            self._recorder.resumed()
        return left

    def _suspect_all(self, replica: Replica) -> None:
        """A replica's engine ended, perhaps because of one of its requests: they resume elsewhere, in trials."""
        left = self._given_up(replica)
        for carried in left:
            carried.deaths += 1
        guilty, others = self._trials.lost(replica, left)
        refusals: list[TurnOutcome] = []
        for carried in guilty:
            logger.error("request %s ended two engines, the second one alone on trial, and is refused", carried.id)
            error = EngineKilledError("the engine process ended while it ran this request alone, after another one had")
            refusals.append(self._refusal(carried, error))
        if refusals and self._sink is not None:
            self._sink.deliver(refusals)
        for carried in others:
            self._put(carried)
        self._try_next()

    def _try_next(self) -> None:
        """Begin the next trial, if one is due and there is a replica for it: that with least of this server's requests."""
        if not self._trials.is_due:
            return
        slow = self._stragglers.quarantined
        ready, now = self._ready(), time.monotonic()
        if not ready:
            return
        name = min(ready, key=lambda one: (one in slow, len(self._members[one].sequences), ready[one].running))
        for carried in self._trials.begin(self._members[name], now):
            self._placement.assign(carried, name, ready, now)
            self._members[name].take(carried)

    # What time brings.

    def _look(self) -> None:
        now, due = time.monotonic(), self._looks.when()
        self._looks = self._loop.call_later(LOOK_SECONDS, self._look)
        if self._loop.time() - due < HELD_UP:
            self._find_hanging(now)
        self._observe(now)
        self._let_go(now)
        self._trials.look(now)
        self._try_next()
        late = [one for one in self._waiting.values() if now > one.wait_until]
        if self._failure is None and not self._num_ready and now - self._alone_since > self._settings.wait_seconds:
            self._fail(EngineDeadError(f"no replica is left: {self._reason}", retry_after=max(1.0, self._settings.wait_seconds)))
        elif late and self._sink is not None:
            self._sink.deliver([self._refusal(one, self._too_late(one)) for one in late])
        self._put_waiting()

    def _too_late(self, carried: CarriedRequest) -> JaxserveError:
        if carried.refusal is not None:
            return carried.refusal.copy()
        message = f"no replica was there for {self._settings.wait_seconds:.0f} s"
        return OverloadedError(message, retry_after=max(1.0, self._settings.wait_seconds))

    def _find_hanging(self, now: float) -> None:
        for replica in self._all():
            if not replica.hangs(now, self._settings.hang_seconds):
                if replica.connected and replica.hung:
                    self._welcome(replica)
            elif replica.ready or replica.sequences:
                logger.error("replica %s hangs: its streams go on elsewhere", replica.id)
                self._recorder.hung()
                self._withdraw(replica, "it hangs")
                replica.hung = True
                self._suspect_all(replica)

    def _observe(self, now: float) -> None:
        loads = {name: one.link.load() for name, one in self._members.items() if one.ready}
        for name, load in loads.items():
            of_router = ReplicaLoad(load.running, load.waiting, load.pages_total, load.pages_free, load.step_seconds)
            self._router.observe(name, of_router, now)
        for name in self._stragglers.look({name: load.step_seconds for name, load in loads.items()}, now):
            logger.warning("replica %s is much slower than the others, and gets nothing new for a while", name)
            self._recorder.quarantined()

    def _let_go(self, now: float) -> None:
        """Close those that leave and have nothing left; what they could not end in time goes on elsewhere."""
        for replica in list(self._leaving):
            if replica.sequences and replica.leave_by is not None and now > replica.leave_by:
                self._move_all(replica)
            if not replica.sequences:
                self._leaving.remove(replica)
                closing = self._loop.create_task(replica.link.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    def _fail(self, error: JaxserveError) -> None:
        """Nothing runs any more."""
        self._failure = error
        now = time.monotonic()
        for carried, _ in self._sequences.values():
            self._router.ended(carried.routing.id, now)
        self._sequences.clear()
        self._waiting.clear()
        self._trials = FleetTrials()
        for replica in self._all():
            replica.give_up()
        if self._sink is not None:
            self._sink.lost(error)
