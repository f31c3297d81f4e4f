"""One call of a client, from its first header to its last byte: whose it is, what it takes, what it delivers."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from jaxserve.engine.events import Delta, Event
from jaxserve.errors import ErrorCode, JaxserveError, ModelNotFoundError, PermissionDeniedError
from jaxserve.types import RequestOptions, ServiceClass
from server.gateway.keys import Principal
from server.gateway.ledger import UsageLedger
from server.gateway.messages import Granted, Levels, Peek, Refused, Reserve, Settle
from server.gateway.meter import Meter
from server.gateway.refusals import refusal
from server.gateway.usage import UsageEvent, UsageSink
from server.tally import Tally

DISCONNECTED = "disconnected"
MOST_TOKENS = 10**9  # of one output that are charged before it begins: more is refused anyway, and could be any number
_PRECEDENCE = tuple(ServiceClass)


@dataclass(frozen=True, slots=True)
class JobSize:
    """How much a job may take.

    Attributes:
        prompt_tokens: of all its prompts, estimated.
        sequences: of each prompt.
        max_tokens: of one output, None if it does not say.
        delivers_output: whether the client gets the tokens that are generated.
    """

    prompt_tokens: int
    prompts: int
    sequences: int
    max_tokens: int | None
    delivers_output: bool


NO_TOKENS = JobSize(prompt_tokens=0, prompts=1, sequences=1, max_tokens=0, delivers_output=False)


@dataclass(slots=True, eq=False)
class Bill:
    """A job that was admitted: counts what it takes, by prompt, and what it delivers.

    `passed` takes every event, in order, then `ended` says how it went.
    """

    ledger: UsageLedger
    reservation: str | None
    size: JobSize
    meter: Meter | None
    tallies: defaultdict[int, Tally] = field(default_factory=lambda: defaultdict(Tally))
    _reason: str = DISCONNECTED

    def passed(self, prompt: int, event: Event) -> None:
        self.tallies[prompt].add(event)
        if self.meter is not None and (self.size.delivers_output or not isinstance(event, Delta)):
            self.meter.passed(prompt, event, self.size.sequences)

    def ended(self, error: BaseException | None) -> None:
        """There are no more events: charge what was taken."""
        if self.reservation is not None:
            took = self.tallies.values()
            prompt, output = sum(one.prompt for one in took), sum(one.completion for one in took)
            self.ledger.tell(Settle(self.reservation, prompt, output, sum(one.finished for one in took)))
            self.reservation = None
        if error is not None:
            if isinstance(error, Exception):  # else the reader left
                self._reason = (error.code if isinstance(error, JaxserveError) else ErrorCode.INTERNAL).value
            if self.meter is not None:
                self.meter.broke_off()

    def handed(self) -> None:
        """The transport has taken what was made of all events so far."""
        if self.meter is not None:
            self.meter.handed()

    def close(self) -> None:
        """Nothing more will be handed to the transport."""
        if self.meter is not None:
            self.meter.close(self._reason)


@dataclass(slots=True, eq=False)
class Call:
    """One call.

    Attributes:
        log: where usage is written, None for nowhere.
        background: whether it is a batch's: of the tenant's limits only the tokens of the day stand against it.
        levels: what was left for the tenant when its limits were last looked at.
        broken: whether anything started for it did not come to its end.
    """

    request_id: str
    principal: Principal
    owner: str
    ledger: UsageLedger
    log: UsageSink | None
    background: bool = False
    levels: Levels | None = None
    broken: bool = False
    _runs: list[Bill] = field(default_factory=list)

    @property
    def account(self) -> str:
        """Whose bounds it counts against: its tenant's, or those that all share who come without a key."""
        return self.principal.tenant or ""

    def part(self) -> Call:
        """A call for one of several requests on this one; who makes it closes it."""
        return replace(self, broken=False, _runs=[])

    def options(self, given: RequestOptions) -> RequestOptions:
        """The request's options as its key allows them. Raises PermissionDeniedError for a class above the key's."""
        principal = self.principal
        if principal.tenant is None:
            return given
        asked, own = given.service_class, principal.service_class
        if asked is not None and own is not None and _PRECEDENCE.index(asked) < _PRECEDENCE.index(own):
            raise PermissionDeniedError(f"service_class {asked} is above {own}, that of the API key", param="service_class")
        return replace(given, tenant=principal.tenant, service_class=asked or own)

    def may_use(self, names: Collection[str]) -> bool:
        """Whether the key may use a model that has these names: it need not have all of them."""
        return self.principal.models is None or not self.principal.models.isdisjoint(names)

    def check_model(self, names: Sequence[str]) -> None:
        """Raise ModelNotFoundError for a model that the key may not use."""
        if not self.may_use(names):
            raise ModelNotFoundError(f"the model {names[0]!r} does not exist, or the API key may not use it", param="model")

    def engine_id(self, request_id: str) -> str:
        """The engine's name for a request: a tenant cannot name, and so not abort or stand in the way of, another's."""
        tenant = self.principal.tenant
        # With its length: names of tenants may hold colons themselves.
        return request_id if tenant is None else f"{len(tenant)}:{tenant}:{request_id}"

    async def start(self, completion_id: str, model: str, options: RequestOptions, size: JobSize) -> Bill:
        """Admit a job and charge its estimate. Raises RateLimitError, BudgetError or InvalidRequestError."""
        reservation = await self._reserve(size)
        meter = None
        if self.log is not None:
            meter = Meter(lambda prompt, index: self._usage(completion_id, model, options, prompt, index), self.log.add)
        run = Bill(self.ledger, reservation, size, meter)
        self._runs.append(run)
        return run

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        """For work that generates nothing: a request as others are, but without tokens. Raises RateLimitError."""
        reservation = await self._reserve(NO_TOKENS)
        try:
            yield
        finally:
            if reservation is not None:
                self.ledger.tell(Settle(reservation, 0, 0, 0))

    def ended(self, run: Bill, error: BaseException | None) -> None:
        """A job of the call has no more events; `error` is what ended it before its time."""
        self.broken = self.broken or error is not None
        run.ended(error)

    def handed(self) -> None:
        """The transport has taken everything that was made of events so far."""
        for run in self._runs:
            run.handed()

    def close(self) -> None:
        for run in self._runs:
            run.close()
        self._runs.clear()

    async def look(self) -> Levels | None:
        """What is left for the tenant, None if it has no limits."""
        tenant, limits = self.principal.tenant, self.principal.limits
        if self.levels is None and tenant is not None and limits.per_minute:
            levels = await self.ledger.ask(Peek(tenant, limits))
            assert isinstance(levels, Levels)
            self.levels = levels
        return self.levels

    async def _reserve(self, size: JobSize) -> str | None:
        tenant, limits = self.principal.tenant, self.principal.limits
        if tenant is None or not limits.any:
            return None
        reservation = uuid.uuid4().hex
        sequences = size.prompts * size.sequences
        most = None if size.max_tokens is None else min(size.max_tokens, MOST_TOKENS)
        ask = Reserve(self.owner, reservation, tenant, limits, size.prompt_tokens, sequences, most, self.background)
        try:
            answer = await self.ledger.ask(ask)
        except BaseException:  # it may be reserved all the same
            self.ledger.tell(Settle(reservation, 0, 0, 0))
            raise
        assert isinstance(answer, Granted | Refused)
        self.levels = answer.levels
        if isinstance(answer, Refused):
            raise refusal(answer, tenant)
        return reservation

    def _usage(self, completion_id: str, model: str, options: RequestOptions, prompt: int, index: int) -> UsageEvent:
        return UsageEvent(
            request_id=self.request_id,
            completion_id=completion_id,
            tenant=options.tenant,
            key_id=self.principal.key_id,
            model=model,
            service_class=options.service_class or "",
            prompt=prompt,
            index=index,
        )
