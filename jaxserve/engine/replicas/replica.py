"""One engine of a fleet, and what runs in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jaxserve.engine.link import EngineDescription, EngineLink, HeldChange
from jaxserve.engine.loop import TurnOutcome
from jaxserve.engine.replicas.carried import CarriedRequest, CarriedSequence
from jaxserve.errors import JaxserveError

UNKNOWN_FACTOR = 6  # by which work of unknown length may take longer


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine listens.

    Attributes:
        address: ZeroMQ endpoint.
        weight: its speed, as a multiple of others'.
        key: its public key, if it has keys.
    """

    address: str
    weight: float = 1.0
    key: str | None = None


class ReplicaLink(EngineLink, Protocol):
    """An EngineLink that knows when it last heard of its engine, and can tell what the engine's prefix cache holds."""

    @property
    def heard(self) -> float:
        """Time at which anything came from the engine, by the machine's monotonic clock; minus infinity before."""
        ...

    def watch(self, every: int, holds: Callable[[HeldChange], None]) -> None:
        """Tell, in the event loop, everything that the cache of an engine that is there holds, and then what changes.

        Of the pages of a prompt only the last of every so many matter.
        """
        ...


class ReplicaSink(Protocol):
    """Who hears of replicas."""

    def delivered(self, replica: Replica, outcomes: Sequence[TurnOutcome]) -> None: ...

    def replica_lost(self, replica: Replica, error: JaxserveError) -> None: ...

    def replica_found(self, replica: Replica, description: EngineDescription) -> None: ...


class Replica:
    """The sink of its link.

    Attributes:
        id: its name.
        ready: whether it takes requests.
        connected: whether its engine is there.
        since: when its engine was found.
        hung: whether it is not ready because it stood still.
        reason: why it is not ready, for people.
        leave_by: time by which it must be empty; None unless it leaves the fleet.
        sequences: what runs in it, by the ids that it knows.
        calls: what waits for its answer.
    """

    def __init__(self, id: str, endpoint: Endpoint, link: ReplicaLink, sink: ReplicaSink) -> None:
        self.id = id
        self.endpoint = endpoint
        self.link = link
        self.ready = False
        self.connected = False
        self.since = 0.0
        self.hung = False
        self.reason = "it was not found yet"
        self.leave_by: float | None = None
        self.sequences: dict[str, tuple[CarriedRequest, CarriedSequence]] = {}
        self.calls: set[asyncio.Future[Any]] = set()
        self._sink = sink
        link.connect(self)

    def deliver(self, outcomes: Sequence[TurnOutcome]) -> None:
        self._sink.delivered(self, outcomes)

    def lost(self, error: JaxserveError) -> None:
        self.connected = False
        self._sink.replica_lost(self, error)

    def found(self, description: EngineDescription) -> None:
        self.connected = True
        self._sink.replica_found(self, description)

    def hangs(self, now: float, seconds: float) -> bool:
        """Whether an engine that is there has said nothing for so long, or is so late with what it does."""
        turned, heard = max(self.link.heartbeat, self.since), max(self.link.heard, self.since)
        late = self.link.lateness(now)
        overdue = min(late.overdue, now - self.since) if late.known else (now - turned) / UNKNOWN_FACTOR
        return self.connected and max(now - heard, overdue) > seconds

    def take(self, carried: CarriedRequest) -> None:
        """Hand it what is left of a request."""
        carried.replica = self
        left = carried.unfinished
        self.sequences.update((carried.id_of(one), (carried, one)) for one in left)
        self.link.add(carried.requests())
        demoted = [carried.id_of(one) for one in left if one.demoted]
        if demoted:
            self.link.demote(demoted, demoted=True)

    def forget(self, carried: CarriedRequest) -> None:
        """It has nothing of a request any more."""
        for one in carried.sequences.values():
            self.sequences.pop(carried.id_of(one), None)

    def give_up(self) -> list[CarriedRequest]:
        """Everything that runs in it, in the order it came; nothing that it says of it counts any more."""
        if self.connected and self.sequences:
            self.link.abort(list(self.sequences))
        carried = dict.fromkeys(request for request, _ in self.sequences.values())
        self.sequences.clear()
        for call in self.calls:
            call.cancel()
        return list(carried)
