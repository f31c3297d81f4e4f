"""Requests of a fleet on their way: what was asked for, and what came of it so far, so that another engine can go on with it."""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from jaxserve.cache.prefix_hash import adapter_root, page_hash
from jaxserve.engine.link import EngineLink
from jaxserve.errors import JaxserveError
from jaxserve.routing.router import RoutingRequest
from jaxserve.scheduler.request import EngineRequest, Update


@dataclass(slots=True, eq=False)
class CarriedSequence:
    """One sequence.

    Attributes:
        request: as it was handed over first.
        output: tokens that were delivered.
        num_readings: readings of its prompt that were.
        demoted: whether it gives way to all others.
        handed_over: how much was delivered when its engine got it.
        ended: whether nothing more of it is wanted, or to come.
    """

    request: EngineRequest
    output: list[int] = field(default_factory=list)
    num_readings: int = 0
    demoted: bool = False
    handed_over: int = 0
    ended: bool = False

    @property
    def progress(self) -> int:
        """How much was delivered: tokens and readings."""
        return len(self.output) + self.num_readings

    def took(self, update: Update) -> None:
        """Remember what is delivered."""
        if update.token is not None:
            self.output.append(update.token)
        if update.prompt_logprobs is not None:
            self.num_readings += update.prompt_logprobs.num_rows
        if update.vectors is not None:
            self.num_readings += update.vectors.num_tokens
        self.ended = update.finish_reason is not None or update.error is not None


class Holder(Protocol):
    """An engine that has requests; see Replica."""

    @property
    def link(self) -> EngineLink: ...

    @property
    def sequences(self) -> MutableMapping[str, tuple[CarriedRequest, CarriedSequence]]: ...


class CarriedRequest:
    """The sequences of one request; all of them are at one engine, or at none.

    Attributes:
        routing: what routers are told of it.
        sequences: those of the request by their ids.
        replica: where it is; None while it waits for one.
        moves: how often it left an engine that had taken it.
        begun: whether any of it was delivered, so that it has started in time.
        started: whether the engine that has it chose a token.
        tried: replicas that refused it since it last ran.
        refusal: why the last of them did.
        wait_until: time until which it may wait for a replica.
        deaths: engines that ended while it was in them.
        excused: whether its time to start is over without a limit, because there was no engine for a while.
    """

    def __init__(self, requests: Sequence[EngineRequest], routing: RoutingRequest) -> None:
        self.routing = routing
        self.sequences = {one.id: CarriedSequence(one) for one in requests}
        self.replica: Holder | None = None
        self.moves = 0
        self.begun = False
        self.started = False
        self.tried: set[str] = set()
        self.refusal: JaxserveError | None = None
        self.wait_until = math.inf
        self.deaths = 0
        self.excused = False

    @property
    def id(self) -> str:
        """The id of its first sequence, which no other request in flight has."""
        return self.routing.id

    @property
    def progress(self) -> int:
        """How much of it was delivered."""
        return sum(one.progress for one in self.sequences.values())

    def has_run(self, tokens: int) -> bool:
        """Whether each of its sequences ended, or got N tokens from its current engine."""
        return all(one.ended or one.progress - one.handed_over >= tokens for one in self.sequences.values())

    @property
    def unfinished(self) -> list[CarriedSequence]:
        return [one for one in self.sequences.values() if not one.ended]

    def id_of(self, sequence: CarriedSequence) -> str:
        """What its engine calls a sequence: another name at every engine that goes on with it, so that late words are known."""
        return f"{sequence.request.id}~{self.moves}" if self.moves else sequence.request.id

    def moved(self, wait_until: float) -> None:
        """It left its engine, and needs another one by some time."""
        self.replica, self.refusal, self.wait_until = None, None, wait_until
        self.moves += 1
        self.started = False
        self.tried.clear()

    def requests(self) -> list[EngineRequest]:
        """What is left of it, as the next engine is to take it in."""
        left = self.unfinished
        for one in left:
            one.handed_over = one.progress
        if not self.moves:
            return [one.request for one in left]
        first, *others = [self._resumed(one) for one in left]
        return [replace(first, parent=None), *(replace(one, parent=first.id) for one in others)]

    def _resumed(self, sequence: CarriedSequence) -> EngineRequest:
        request = sequence.request
        return replace(
            request,
            id=self.id_of(sequence),
            queue_deadline=math.inf if self.begun or self.excused else request.queue_deadline,
            output=(*request.output, *sequence.output),
            num_readings=request.num_readings + sequence.num_readings,
            resumed=True,
        )


def routing_request(requests: Sequence[EngineRequest], page_size: int, output_tokens: float) -> RoutingRequest:
    """What a router is told of the sequences of a request, of which so many output tokens are expected.

    Pages are kept apart by the names of adapters, which alone are known here; engines keep theirs apart by the contents. So what
    engines say that they hold is never an adapter's: its requests go by what was sent before, or to the home of their prefix.
    """
    first = requests[0]
    pages, parent = [], adapter_root(first.cache_root, first.adapter)
    for end in range(page_size, len(first.prompt) + 1, page_size):
        parent = page_hash(parent, first.prompt[end - page_size : end])
        pages.append(parent)
    return RoutingRequest(
        id=first.id,
        pages=tuple(pages),
        page_size=page_size,
        tokens=len(first.prompt),
        output_tokens=round(output_tokens),
        tenant=first.tenant,
        service_class=first.service_class,
        deadline=first.deadline,
    )
