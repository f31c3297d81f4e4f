"""What a finished simulation has to say, as plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from jaxserve.errors import ErrorCode
from jaxserve.simulation.calibrate import Fit
from jaxserve.simulation.costs import Calibration
from jaxserve.simulation.fleet import Fleet
from jaxserve.simulation.ledger import TIERS, Tally, merged
from jaxserve.simulation.replica import Totals
from jaxserve.simulation.scenario import Scenario
from jaxserve.simulation.usage import Usage, usage
from jaxserve.types import ServiceClass
from jaxserve.workload.stats import Percentiles

_SERIES = ("received", "finished", "refusals", "output_tokens", "good_tokens", "preemptions")
_LEVELS = ("queue", "running", "kv_use", "step_tokens")
_SCALING = ("ready", "starting", "draining")  # replicas, of fleets that scale
_MAX_POINTS = 200  # of a distribution's curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What some of the clients saw.

    Attributes:
        received, finished, refused, expired, timed_out, failed: requests, as in the ledger's tallies.
        queued: seconds that an engine let requests wait before their first step, of all that got a token.
        ttft, e2e: seconds from a request's first arrival, waits before retries included, to its first and its last token.
        itl: seconds between successive tokens of a request.
        output_tokens_per_s, goodput_tokens_per_s: tokens that clients got, and those of finished requests within the SLO.
        slo_share: share of the received requests that finished within the SLO.
        late, slow: requests whose first token came too late for the SLO, and finished ones whose other tokens came too slowly.
    """

    received: int
    finished: int
    refused: int
    expired: int
    timed_out: int
    failed: int
    queued: Percentiles
    ttft: Percentiles
    itl: Percentiles
    e2e: Percentiles
    output_tokens_per_s: float
    goodput_tokens_per_s: float
    slo_share: float
    late: int
    slow: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """What the replicas did.

    Attributes:
        steps: count.
        mean_rows, max_rows, mean_tokens: of a step.
        drafts, draft_tokens, accepted_tokens: rows that verified drafts, those, and the ones that were right.
        acceptance: share of the drafts that were right.
        tokens_a_row: output tokens that a row which chooses gets in a step.
        draft_share: share of the devices' work that was a draft model's.
        tokens, tokens_recomputed, tokens_lost: computed in all, again after a preemption, and for requests whose replica failed.
        preemptions, swapped: sequences that gave their pages back, and those of them whose pages were kept on the host.
        preempted_tokens, preempted_pages: computed tokens that they lost, and pages that became free.
        length_error: how much longer outputs were expected to get than they got, as a share, over all that ended by themselves.
        prefix_hit_rate: share of the tokens looked up when sequences start, or start again, that the prefix cache had.
        kv_use_mean, kv_use_max: share of a replica's pages in use, while it had something to do.
        queue_mean, queue_max: requests waiting at a replica, while it had something to do.
        busy_share: share of the run, times replicas, that devices worked.
    """

    steps: int
    mean_rows: float
    max_rows: int
    mean_tokens: float
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    acceptance: float
    tokens_a_row: float
    draft_share: float
    tokens: int
    tokens_recomputed: int
    tokens_lost: int
    preemptions: int
    swapped: int
    preempted_tokens: int
    preempted_pages: int
    length_error: float
    prefix_hit_rate: float
    kv_use_mean: float
    kv_use_max: float
    queue_mean: float
    queue_max: int
    busy_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaShare:
    """What one replica did of all, failures and new starts included.

    Attributes:
        requests: it was given.
        tokens: it computed.
        prefix_hit_rate: as of all engines.
        busy_s: seconds that its device worked.
    """

    requests: int
    tokens: int
    prefix_hit_rate: float
    busy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The most of any replica over the mean of all: 1 if they are equal, 0 if nothing was done."""

    requests: float
    tokens: float
    busy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A simulation's outcome.

    Attributes:
        calibration: factors of the cost model.
        fit: every measured step beside the fit, if the factors are from a profile.
        seconds: from the start to the end of the last request.
        refusals: by error code, refusals answered; each told its client when to come back.
        retries, failovers: refused requests that came back, requests that went on in another replica.
        jain: Jain's index of token-work between tenants while they competed; None if they never did.
        all, tenants, tiers, classes: service to everybody, by tenant, by context tier (prompt plus output), by service class.
        usage: GPUs and their price.
        replicas: by number.
        balance: between them.
        bin_s: seconds of a bin of `series`.
        series: events a second, and mean levels of a replica, over time; None where no replica had anything to do.
        ttft_curve, itl_curve: (seconds, share of at most that).
    """

    scenario: Scenario
    hardware: str
    calibration: Calibration
    fit: Fit | None
    seconds: float
    refusals: dict[ErrorCode, int]
    retries: int
    failovers: int
    jain: float | None
    all: Service
    tenants: dict[str, Service]
    tiers: dict[str, Service]
    classes: dict[str, Service]
    engines: Engines
    usage: Usage
    replicas: list[ReplicaShare]
    balance: Balance
    bin_s: float
    series: dict[str, list[float | None]]
    ttft_curve: list[tuple[float, float]]
    itl_curve: list[tuple[float, float]]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def report(scenario: Scenario, fleet: Fleet) -> Report:
    ledger, seconds, ttft = fleet.ledger, fleet.ledger.ended, scenario.slo.slo_ttft_ms / 1e3
    total = ledger.total()

    def by(key: Callable[[tuple[str, str, str]], str]) -> dict[str, Service]:
        names = dict.fromkeys(key(kind) for kind in ledger.tallies)
        groups = {name: merged(tally for kind, tally in ledger.tallies.items() if key(kind) == name) for name in names}
        return {name: _service(group, seconds, ttft) for name, group in groups.items()}

    used = usage(scenario.replica, fleet)
    tiers, classes = by(lambda kind: kind[2]), by(lambda kind: kind[1])
    replicas = [_share(totals) for totals in fleet.by_replica]
    return Report(
        scenario=scenario,
        hardware=fleet.spec.layout.hardware.name,
        calibration=fleet.spec.calibration,
        fit=fleet.spec.fit,
        seconds=seconds,
        refusals=ledger.refusals,
        retries=ledger.retries,
        failovers=ledger.failovers,
        jain=ledger.fairness.index,
        all=_service(total, seconds, ttft),
        tenants=dict(sorted(by(lambda kind: kind[0]).items())),
        tiers={name: tiers[name] for name in TIERS if name in tiers},
        classes={name: classes[name] for name in ServiceClass if name in classes},
        engines=_engines(fleet, used.replica_hours * 3600.0),
        usage=used,
        replicas=replicas,
        balance=Balance(
            **{item.name: _most_over_mean([getattr(one, item.name) for one in replicas]) for item in fields(Balance)}
        ),
        bin_s=fleet.timeline.width,
        series=fleet.timeline.series([*_SERIES, *_LEVELS, *(() if fleet.scaling is None else _SCALING)]),
        ttft_curve=_curve(total),
        itl_curve=total.itl.cumulative(),
    )


def _service(tally: Tally, seconds: float, slo_ttft: float) -> Service:
    ttft = np.array(tally.ttft)
    return Service(
        received=tally.received,
        finished=tally.finished,
        refused=tally.refused,
        expired=tally.expired,
        timed_out=tally.timed_out,
        failed=tally.failed,
        queued=Percentiles.of(np.array(tally.queued)),
        ttft=Percentiles.of(ttft),
        itl=tally.itl.percentiles(),
        e2e=Percentiles.of(np.array(tally.e2e)),
        output_tokens_per_s=_ratio(tally.output_tokens, seconds),
        goodput_tokens_per_s=_ratio(tally.good_tokens, seconds),
        slo_share=_ratio(tally.good_requests, tally.received),
        late=int((ttft > slo_ttft).sum()),
        slow=tally.slow_requests,
    )


def _engines(fleet: Fleet, replica_seconds: float) -> Engines:
    totals = fleet.totals
    return Engines(
        steps=totals.steps,
        mean_rows=_ratio(totals.rows, totals.steps),
        max_rows=totals.max_rows,
        mean_tokens=_ratio(totals.tokens, totals.steps),
        drafts=totals.drafted,
        draft_tokens=totals.draft_tokens,
        accepted_tokens=totals.accepted,
        acceptance=_ratio(totals.accepted, totals.draft_tokens),
        tokens_a_row=_ratio(totals.choosing + totals.accepted, totals.choosing),
        draft_share=_ratio(totals.draft_s, totals.busy_s),
        tokens=totals.tokens,
        tokens_recomputed=totals.recomputed,
        tokens_lost=totals.lost,
        preemptions=totals.preemptions,
        swapped=totals.swapped,
        preempted_tokens=totals.preempted_tokens,
        preempted_pages=totals.preempted_pages,
        length_error=_ratio(totals.expected - totals.actual, totals.actual),
        prefix_hit_rate=_ratio(totals.hits, totals.queried),
        kv_use_mean=_ratio(totals.kv_s, totals.turn_s),
        kv_use_max=totals.max_kv,
        queue_mean=_ratio(totals.queue_s, totals.turn_s),
        queue_max=totals.max_queue,
        busy_share=_ratio(totals.busy_s, replica_seconds),
    )


def _share(totals: Totals) -> ReplicaShare:
    return ReplicaShare(
        requests=totals.requests,
        tokens=totals.tokens,
        prefix_hit_rate=_ratio(totals.hits, totals.queried),
        busy_s=totals.busy_s,
    )


def _balance(replicas: list[ReplicaShare]) -> Balance:
    return Balance(**{item.name: _most_over_mean([getattr(one, item.name) for one in replicas]) for item in fields(Balance)})


def _most_over_mean(values: list[float]) -> float:
    return _ratio(max(values) * len(values), sum(values))


def _curve(total: Tally) -> list[tuple[float, float]]:
    """The distribution of TTFT in at most so many points."""
    values = np.sort(np.array(total.ttft))
    places = np.unique(np.linspace(0, len(values) - 1, _MAX_POINTS).astype(int)) if len(values) else np.zeros(0, int)
    return [(float(values[place]), (place + 1) / len(values)) for place in places.tolist()]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
