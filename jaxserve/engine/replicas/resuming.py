"""ResumingLink: a link to one engine process whose requests survive its death.

Several API servers share the engine, so none of them knows all requests that were in it. A coordinator does (the supervisor): it
is told of what was in flight, and gives orders who may run in the next engine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from jaxserve.engine.activity import Lateness
from jaxserve.engine.calls import EngineCall
from jaxserve.engine.death import EngineDeath
from jaxserve.engine.link import EngineDescription, EngineLoad, LinkSink
from jaxserve.engine.loop import Refusal, TurnOutcome
from jaxserve.engine.remote.link import RemoteLink
from jaxserve.engine.replicas.carried import CarriedRequest, CarriedSequence
from jaxserve.errors import EngineDeadError, EngineKilledError, JaxserveError, OverloadedError, QueueFullError
from jaxserve.routing.router import RoutingRequest
from jaxserve.scheduler.request import EngineRequest

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5  # between two looks at what waits
WAIT_SECONDS = 30.0  # that new requests wait for trials to end


class Orders(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Which requests may be in the engine, by the ids of their first sequences.

    Attributes:
        number: later orders have larger ones.
        trial: these and no others; None for all that are not held. Empty while there is no engine.
        held: suspects that wait for their trial.
        convicted: those that end an engine, to be ended with an error.
        tokens: that each sequence of a request on trial must get to pass.
    """

    number: int
    trial: list[str] | None = None
    held: list[str] = []
    convicted: list[str] = []
    tokens: int = 0


class Coordinator(Protocol):
    """Whoever gives orders. `lost`, `passed` and `ended` never block."""

    def lost(self, in_flight: Sequence[str]) -> None:
        """The engine ended with these requests in it, those with most output first."""
        ...

    async def found(self) -> Orders:
        """Another engine is there. Returns the latest orders."""
        ...

    def passed(self, request: str) -> None:
        """A request on trial got its tokens."""
        ...

    def ended(self, request: str) -> None:
        """A suspect ended."""
        ...


class ResumingSink(LinkSink, Protocol):
    """A sink that can wait."""

    def paused(self, error: JaxserveError) -> None:
        """No engine is there, and nothing new is taken until it is `found`; what runs resumes then. `error` says why."""
        ...


class ResumingLink:
    """An EngineLink; see there. Belongs to the event loop that it is made in."""

    def __init__(self, link: RemoteLink, coordinator: Coordinator) -> None:
        self._link = link
        self._coordinator = coordinator
        self._sink: ResumingSink | None = None
        self._error: JaxserveError | None = EngineDeadError("the engine has not started")
        self._orders = Orders(number=-1)
        self._held: frozenset[str] = frozenset()  # by the orders
        self._trying: set[str] = set()  # requests on trial that did not pass yet
        self._is_open = False  # whether orders for this engine are known
        self._asking: asyncio.Task[None] | None = None
        self._requests: dict[str, CarriedRequest] = {}  # by the ids of their first sequences
        self._sequences: dict[str, tuple[CarriedRequest, CarriedSequence]] = {}  # by the ids that the sink knows
        self._running: dict[str, tuple[CarriedRequest, CarriedSequence]] = {}  # by the ids that the engine knows
        self._waiting: dict[str, CarriedRequest] = {}
        self._looks: asyncio.TimerHandle | None = None
        link.connect(self)

    async def described(self) -> EngineDescription:
        return await self._link.described()

    @property
    def heartbeat(self) -> float:
        return self._link.heartbeat

    def lateness(self, now: float) -> Lateness:
        return self._link.lateness(now)

    @property
    def death(self) -> EngineDeath | None:
        return self._link.death

    def explain(self, error: JaxserveError) -> None:
        self._link.explain(error)

    def move(self, address: str) -> None:
        self._link.move(address)

    def connect(self, sink: ResumingSink) -> None:
        self._sink = sink
        if self._error is not None:
            sink.paused(self._error)

    def add(self, requests: Sequence[EngineRequest]) -> None:
        if self._error is not None:  # the sink was told
            return
        first = requests[0]
        routing = RoutingRequest(id=first.id, pages=(), page_size=0, tokens=len(first.prompt), output_tokens=0)
        carried = CarriedRequest(requests, routing)
        carried.wait_until = time.monotonic() + WAIT_SECONDS
        self._requests[carried.id] = carried
        self._sequences.update((name, (carried, one)) for name, one in carried.sequences.items())
        self._put(carried)

    def abort(self, ids: Sequence[str]) -> None:
        for name in ids:
            found = self._sequences.get(name)
            if found is None:
                continue
            carried, sequence = found
            if (known := carried.id_of(sequence)) in self._running:
                self._link.abort([known])
            sequence.ended = True
            self._over(carried, sequence)

    def demote(self, ids: Sequence[str], *, demoted: bool) -> None:
        for name in ids:
            if (found := self._sequences.get(name)) is None:
                continue
            carried, sequence = found
            sequence.demoted = demoted
            if (known := carried.id_of(sequence)) in self._running:
                self._link.demote([known], demoted=demoted)

    async def call(self, call: EngineCall[Result]) -> Result:
        return await self._link.call(call)

    def load(self) -> EngineLoad:
        load = self._link.load()
        waiting = sum(len(one.unfinished) for one in self._waiting.values())
        return dataclasses.replace(load, waiting=load.waiting + waiting) if waiting else load

    async def close(self) -> None:
        self._abandon(EngineDeadError("the link to the engine is closed"))
        if self._asking is not None:
            self._asking.cancel()
        if self._looks is not None:
            self._looks.cancel()
        await self._link.close()

    def give_up(self, error: JaxserveError) -> None:
        """There will be no engine any more."""
        self._abandon(error)

    def instruct(self, orders: Orders) -> None:
        """Follow orders of the coordinator, unless there are later ones."""
        if orders.number < self._orders.number:
            return
        self._orders = orders
        self._held, self._trying = frozenset(orders.held), set(orders.trial or ())
        for name in orders.convicted:
            if (carried := self._requests.get(name)) is not None:
                logger.error("request %s ended the engine when it ran alone, and is refused", name)
                self._refuse(carried, EngineKilledError("the engine process ended while it ran this request alone"))
        if self._is_open and orders.trial != []:  # else there is no engine, as this link is about to notice
            self._follow()

    # What the engine says.

    def deliver(self, outcomes: Sequence[TurnOutcome]) -> None:
        delivered: list[TurnOutcome] = []
        for outcome in outcomes:
            found = self._running.get(outcome.ids[0] if isinstance(outcome, Refusal) else outcome.id)
            if found is None:  # it was taken out of the engine, or aborted
                continue
            carried, sequence = found
            if isinstance(outcome, Refusal):
                delivered += self._refused(carried, outcome.error)
                continue
            sequence.took(outcome)
            carried.begun = True
            if carried.moves:
                outcome = replace(outcome, id=sequence.request.id, resumed=carried.moves)
            if sequence.ended:
                self._over(carried, sequence)
            elif carried.id in self._trying and carried.has_run(self._orders.tokens):
                self._trying.remove(carried.id)
                self._coordinator.passed(carried.id)
            delivered.append(outcome)
        if delivered and self._sink is not None:
            self._sink.deliver(delivered)

    def lost(self, error: JaxserveError) -> None:
        first, self._error, self._is_open = self._error is None, error, False
        if not isinstance(error, EngineDeadError):  # the engine lives, and ended what it had of ours
            self._abandon(error)
            return
        if first:
            running = dict.fromkeys(carried for carried, _ in self._running.values())
            self._running.clear()
            for carried in running:
                carried.deaths += 1
                carried.excused = True
                self._wait(carried)
            in_flight = sorted(running, key=lambda one: -one.progress)
            self._coordinator.lost([one.id for one in in_flight])
            if running:
                logger.error("the engine ended with %d requests in it; they resume in the next one", len(running))
        if self._sink is not None:
            self._sink.paused(error)

    def found(self, description: EngineDescription) -> None:
        self._error = None
        if self._asking is not None:
            self._asking.cancel()
        self._asking = asyncio.create_task(self._ask())
        if self._sink is not None:
            self._sink.found(description)

    async def _ask(self) -> None:
        try:
            orders = await self._coordinator.found()
        except JaxserveError:  # the coordinator is gone, and this process with it
            return
        self._is_open = self._error is None
        self.instruct(orders)

    # Which requests are in the engine.

    def _may_run(self, carried: CarriedRequest) -> bool:
        if not self._is_open:
            return False
        trial = self._orders.trial
        return carried.id not in self._held if trial is None else carried.id in trial

    def _follow(self) -> None:
        """Abort requests in the engine that may not run now, and add waiting requests that may."""
        for carried in dict.fromkeys(carried for carried, _ in self._running.values()):
            if not self._may_run(carried):
                self._take_out(carried)
                self._wait(carried)
        for carried in list(self._waiting.values()):
            self._put(carried)

    def _put(self, carried: CarriedRequest) -> None:
        if not self._may_run(carried):
            self._waiting[carried.id] = carried
            self._watch()
            return
        self._waiting.pop(carried.id, None)
        left = carried.unfinished
        self._running.update((carried.id_of(one), (carried, one)) for one in left)
        self._link.add(carried.requests())
        demoted = [carried.id_of(one) for one in left if one.demoted]
        if demoted:
            self._link.demote(demoted, demoted=True)

    def _take_out(self, carried: CarriedRequest) -> None:
        known = [carried.id_of(one) for one in carried.unfinished]
        self._link.abort(known)
        for name in known:
            del self._running[name]

    def _wait(self, carried: CarriedRequest) -> None:
        """It was in an engine, and waits to be in one again."""
        carried.moved(time.monotonic() + WAIT_SECONDS)
        self._waiting[carried.id] = carried
        self._watch()

    def _refused(self, carried: CarriedRequest, error: JaxserveError) -> list[TurnOutcome]:
        for one in carried.unfinished:
            self._running.pop(carried.id_of(one), None)
        if carried.moves and isinstance(error, QueueFullError | OverloadedError):
            carried.refusal = error
            carried.moves += 1  # the engine may still know it by its name
            self._waiting[carried.id] = carried
            self._watch()
            return []
        return [self._end(carried, error)]

    def _refuse(self, carried: CarriedRequest, error: JaxserveError) -> None:
        refusal = self._end(carried, error)
        if self._sink is not None:
            self._sink.deliver([refusal])

    def _end(self, carried: CarriedRequest, error: JaxserveError) -> Refusal:
        ids = tuple(one.request.id for one in carried.unfinished)
        for one in carried.unfinished:
            self._running.pop(carried.id_of(one), None)
            one.ended = True
        self._forget(carried, ids)
        return Refusal(ids, error)

    def _over(self, carried: CarriedRequest, sequence: CarriedSequence) -> None:
        self._running.pop(carried.id_of(sequence), None)
        if carried.unfinished:
            del self._sequences[sequence.request.id]
        else:
            self._forget(carried, [sequence.request.id])

    def _forget(self, carried: CarriedRequest, ids: Collection[str]) -> None:
        for name in ids:
            del self._sequences[name]
        del self._requests[carried.id]
        self._waiting.pop(carried.id, None)
        if carried.deaths:
            self._coordinator.ended(carried.id)

    def _abandon(self, error: JaxserveError) -> None:
        self._error, self._is_open = error, False
        suspects = [one.id for one in self._requests.values() if one.deaths]
        for table in (self._requests, self._sequences, self._running, self._waiting):
            table.clear()
        for name in suspects:
            self._coordinator.ended(name)
        if self._sink is not None:
            self._sink.lost(error)

    # What time brings.

    def _watch(self) -> None:
        if self._looks is None:
            self._looks = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Hand over what was refused before, and refuse what has waited for too long."""
        self._looks = None
        now = time.monotonic()
        for carried in list(self._waiting.values()):
            if carried.refusal is not None and now > carried.wait_until:
                self._refuse(carried, carried.refusal.copy())
            elif not carried.moves and now > carried.wait_until and self._is_open:
                waited = f"the engine examines the requests of one that ended: nothing new ran for {WAIT_SECONDS:.0f} s"
                self._refuse(carried, OverloadedError(waited, retry_after=WAIT_SECONDS))
            elif self._may_run(carried):
                self._put(carried)
        if self._waiting:
            self._watch()
