"""The accounts of a simulation: what became of every request and every token, as its client sees it.

received == finished + refused + expired + timed out + failed + active at every instant. A token is counted once: a client who
was refused and comes back is not sent again what it has.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from jaxserve.errors import DeadlineError, ErrorCode, InvalidRequestError, JaxserveError, RefusedError
from jaxserve.scheduler.request import Update
from jaxserve.simulation.fairness import Fairness
from jaxserve.workload.requests import WorkloadRequest
from jaxserve.workload.stats import Histogram, Timeline

_TIERS = ((2048, "up to 2K"), (8192, "2K to 8K"), (32768, "8K to 32K"), (131072, "32K to 128K"))
_LONGEST_TIER = "above 128K"
ENDS = ("finished", "refused", "expired", "timed_out", "failed")  # each request has one of them
TIERS = (*(name for _, name in _TIERS), _LONGEST_TIER)


_COUNTS = ("received", *ENDS, "output_tokens", "slow_requests", "good_requests", "good_tokens")


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds to the first token, and mean seconds between a request's tokens, at most."""

    ttft: float
    itl: float


@dataclass(slots=True)
class Tally:
    """Requests of one kind.

    Attributes:
        received, finished: requests.
        refused: requests that were not taken, and whose clients gave up.
        expired: those that were taken but did not start in time, and whose clients gave up.
        timed_out: those that started and did not end in time.
        failed: those that something went wrong with.
        output_tokens: tokens that clients got, of finished requests and others.
        slow_requests: finished requests whose tokens came too slowly for the SLO.
        good_requests, good_tokens: finished requests within the SLO, and their output tokens.
        ttft, e2e: seconds from the request's first arrival to its first token (of all that got one) and to its last (finished).
        queued: seconds that an engine let them wait before their first step, of all that got a token.
        itl: seconds between successive tokens of a request.
    """

    received: int = 0
    finished: int = 0
    refused: int = 0
    expired: int = 0
    timed_out: int = 0
    failed: int = 0
    output_tokens: int = 0
    slow_requests: int = 0
    good_requests: int = 0
    good_tokens: int = 0
    ttft: array[float] = field(default_factory=lambda: array("d"))
    e2e: array[float] = field(default_factory=lambda: array("d"))
    queued: array[float] = field(default_factory=lambda: array("d"))
    itl: Histogram = field(default_factory=Histogram)

    def merge(self, other: Tally) -> None:
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ttft.extend(other.ttft)
        self.e2e.extend(other.e2e)
        self.queued.extend(other.queued)
        self.itl.merge(other.itl)


@dataclass(slots=True, eq=False)
class Record:
    """A request on its way.

    Attributes:
        id: its name in an engine.
        attempts: times it was refused.
        granted: time from which the present attempt's time limits count.
        moves: times that the present attempt lost its replica.
        sent: tokens its client has.
        computed: tokens of the present attempt; the first `sent` are not sent again.
        first, last: times of the first and the latest token sent.
        waiting: whether it waits in an engine for its first token.
        tally: where it is counted.
    """

    id: str
    request: WorkloadRequest
    tally: Tally
    attempts: int = 0
    granted: float = 0.0
    moves: int = 0
    sent: int = 0
    computed: int = 0
    first: float = 0.0
    last: float = 0.0
    waiting: bool = False


class RequestLedger:
    """Keeps the accounts.

    Attributes:
        tallies: by (tenant, class, context tier).
        active: requests that were received and whose end is not known.
        refusals: by error code, refusals answered, those of requests that came back included.
        retries: times that a refused request came back.
        failovers: times that a request went on elsewhere because its replica failed.
        ended: time at which the latest request ended.
    """

    def __init__(self, slo: Slo, timeline: Timeline, fairness: Fairness) -> None:
        self.tallies: dict[tuple[str, str, str], Tally] = {}
        self.active: dict[str, Record] = {}
        self.refusals: dict[ErrorCode, int] = {}
        self.fairness = fairness
        self.retries = 0
        self.failovers = 0
        self.ended = 0.0
        self._slo = slo
        self._timeline = timeline

    def receive(self, request: WorkloadRequest, now: float) -> Record:
        tally = self.tallies.setdefault((request.tenant, str(request.service_class), tier(request)), Tally())
        tally.received += 1
        record = Record(str(request.number), request, tally)
        self.active[record.id] = record
        self._timeline.count(now, "received")
        return record

    def enters(self, record: Record, now: float) -> None:
        record.waiting = True
        self.fairness.enters(record.request.tenant, now)

    def refusal(self, record: Record, error: RefusedError, now: float) -> None:
        """An engine did not take it, or did not start it in time; it may come back."""
        assert error.retry_after is not None, "a refusal that does not say when to come back"
        self._leaves(record, now)
        record.attempts += 1
        record.computed = record.moves = 0
        self.refusals[error.code] = self.refusals.get(error.code, 0) + 1
        self._timeline.count(now, "refusals")

    def give_up(self, record: Record, error: RefusedError, now: float) -> None:
        """It does not come back: refused or expired, or failed if its client has tokens already."""
        if record.sent:
            record.tally.failed += 1
        elif isinstance(error, DeadlineError):
            record.tally.expired += 1
        else:
            record.tally.refused += 1
        self._end(record, now)

    def fail(self, record: Record, error: JaxserveError | None, now: float) -> None:
        """It ends without an answer: out of time, too large ever to run, failed, or (None) with no replica left to run it."""
        self._leaves(record, now)
        if isinstance(error, DeadlineError):
            record.tally.timed_out += 1
        elif isinstance(error, InvalidRequestError):
            record.tally.refused += 1
        else:
            record.tally.failed += 1
        self._end(record, now)

    def fail_over(self, record: Record, now: float) -> None:
        """Its replica failed: another goes on behind the tokens that were delivered, as a FleetLink has it."""
        self._leaves(record, now)
        record.moves += 1
        self.failovers += 1

    def deliver(self, updates: Iterable[Update], now: float) -> list[tuple[Record, JaxserveError]]:
        """Tokens reach their clients. Returns the requests that an engine ended with an error, which are still active.

        Tokens of a request that come together share the time since those before them.
        """
        errors: list[tuple[Record, JaxserveError]] = []
        tokens: dict[str, int] = {}
        together: dict[str, tuple[Record, int]] = {}
        active = self.active
        for update in updates:
            record = active[update.id]
            if update.token is not None:
                if record.waiting:
                    self._starts(record, update, now)
                record.computed += 1
                if record.computed > record.sent:
                    record.sent = record.computed
                    tenant = record.request.tenant
                    tokens[tenant] = tokens.get(tenant, 0) + 1
                    if record.sent > 1:
                        together[update.id] = record, together.get(update.id, (record, 0))[1] + 1
                    else:
                        record.first = record.last = now
                        record.tally.ttft.append(now - record.request.arrival)
            if update.finish_reason is not None:
                self._finish(record, now)
            elif update.error is not None:
                errors.append((record, update.error))
        for record, count in together.values():
            for _ in range(count):
                record.tally.itl.add((now - record.last) / count)
            record.last = now
        for tenant, count in tokens.items():
            self.fairness.served(tenant, 0, count, now)
        self._timeline.count(now, "output_tokens", sum(tokens.values()))
        return errors

    def check(self) -> None:
        total = self.total()
        assert total.received == sum(getattr(total, end) for end in ENDS) + len(self.active)

    def total(self) -> Tally:
        return merged(self.tallies.values())

    def _starts(self, record: Record, update: Update, now: float) -> None:
        self._leaves(record, now)
        record.tally.queued.append(update.queue_time)
        self.fairness.served(record.request.tenant, max(record.request.prompt_tokens - update.num_cached, 0), 0, now)

    def _leaves(self, record: Record, now: float) -> None:
        if record.waiting:
            record.waiting = False
            self.fairness.leaves(record.request.tenant, now)

    def _finish(self, record: Record, now: float) -> None:
        tally, request = record.tally, record.request
        tally.finished += 1
        tally.e2e.append(now - request.arrival)
        slow = record.last - record.first > self._slo.itl * max(record.sent - 1, 1)
        tally.slow_requests += slow
        if record.first - request.arrival <= self._slo.ttft and not slow:
            tally.good_requests += 1
            tally.good_tokens += record.sent
            self._timeline.count(now, "good_tokens", record.sent)
        self._timeline.count(now, "finished")
        self._end(record, now)

    def _end(self, record: Record, now: float) -> None:
        record.tally.output_tokens += record.sent
        self.ended = now
        del self.active[record.id]


def tier(request: WorkloadRequest) -> str:
    """The context tier of a request, by prompt plus output."""
    length = request.prompt_tokens + request.output_tokens
    return next((name for most, name in _TIERS if length <= most), _LONGEST_TIER)


def merged(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.merge(tally)
    return total
