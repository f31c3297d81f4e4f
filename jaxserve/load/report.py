"""What a run has to say, as plain numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from jaxserve.load.agreement import Agreement
from jaxserve.load.outcome import RequestOutcome
from jaxserve.workload.settings import SloConfig
from jaxserve.workload.stats import Percentiles

_MAX_POINTS = 200  # of a distribution's curve


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What the clients saw.

    Attributes:
        model: as the server calls it.
        seconds: from the first request that was due to the last end.
        requests, finished, retries: requests sent, those that finished, and refusals that came back.
        errors: requests that did not finish, by what went wrong.
        prompt_tokens, cached_tokens, output_tokens: of finished requests.
        output_tokens_per_s: of finished requests over `seconds`.
        goodput_tokens_per_s: of those that kept both limits of the SLO.
        slo_share: share of all requests that finished and kept both.
        ttft, itl, gap, total, lag: seconds: to the first token, between tokens as each request's mean, between pieces of text,
            in all, and how late this program sent what was due.
        ttft_curve, itl_curve: (seconds, share of requests that took at most as long).
        agreement: the same figures by the server's own metrics; empty if it has none that are known.
    """

    model: str
    seconds: float
    requests: int
    finished: int
    retries: int
    errors: dict[str, int]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    goodput_tokens_per_s: float
    slo_share: float
    ttft: Percentiles
    itl: Percentiles
    gap: Percentiles
    total: Percentiles
    lag: Percentiles
    ttft_curve: tuple[tuple[float, float], ...]
    itl_curve: tuple[tuple[float, float], ...]
    slo: SloConfig
    agreement: tuple[Agreement, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def report(model: str, outcomes: Sequence[RequestOutcome], slo: SloConfig, agreement: Sequence[Agreement]) -> LoadReport:
    good = [outcome for outcome in outcomes if outcome.error is None and outcome.pieces]
    kept = [outcome for outcome in good if _within(outcome, slo)]
    seconds = max(outcome.ended for outcome in outcomes) - min(outcome.due for outcome in outcomes)
    tokens = sum(outcome.output_tokens for outcome in good)
    ttft = np.array([outcome.ttft for outcome in good])
    itl = np.array([outcome.itl for outcome in good if outcome.itl is not None])
    gaps = [np.diff(outcome.pieces) for outcome in good]
    return LoadReport(
        model=model,
        seconds=seconds,
        requests=len(outcomes),
        finished=len(good),
        retries=sum(outcome.retries for outcome in outcomes),
        errors=dict(Counter(outcome.error or "no_text" for outcome in outcomes if outcome.error or not outcome.pieces)),
        prompt_tokens=sum(outcome.prompt_tokens for outcome in good),
        cached_tokens=sum(outcome.cached_tokens for outcome in good),
        output_tokens=tokens,
        output_tokens_per_s=tokens / seconds,
        goodput_tokens_per_s=sum(outcome.output_tokens for outcome in kept) / seconds,
        slo_share=len(kept) / len(outcomes),
        ttft=Percentiles.of(ttft),
        itl=Percentiles.of(itl),
        gap=Percentiles.of(np.concatenate([*gaps, np.empty(0)])),
        total=Percentiles.of(np.array([outcome.total for outcome in good])),
        lag=Percentiles.of(np.array([outcome.sent - outcome.due for outcome in outcomes if not outcome.retries])),
        ttft_curve=_curve(ttft),
        itl_curve=_curve(itl),
        slo=slo,
        agreement=tuple(agreement),
    )


def _within(outcome: RequestOutcome, slo: SloConfig) -> bool:
    itl = outcome.itl or 0.0
    return outcome.ttft * 1e3 <= slo.slo_ttft_ms and itl * 1e3 <= slo.slo_itl_ms


def _curve(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[tuple[float, float], ...]:
    """The distribution at no more points than a picture shows."""
    if not len(values):
        return ()
    ordered = np.sort(values)
    ranks = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), _MAX_POINTS)).round().astype(int))
    return tuple((float(ordered[rank]), (int(rank) + 1) / len(ordered)) for rank in ranks)
