"""Holds what clients saw against what the server's own metrics say of the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from jaxserve.load.outcome import RequestOutcome

_PREFIX = "jaxserve:"


@dataclass(frozen=True, slots=True)
class Agreement:
    """One figure from both sides, in its unit."""

    name: str
    unit: str
    clients: float
    server: float


def agreement(before: str, after: str, outcomes: Sequence[RequestOutcome]) -> list[Agreement]:
    """Compare counts and means over a run.

    Args:
        before: the server's metrics page before the run.
        after: the page after it.
        outcomes: all of the run; nobody else may have used the server meanwhile.
    """
    first, last = _samples(before), _samples(after)

    def grown(name: str) -> float:
        return last.get(_PREFIX + name, 0.0) - first.get(_PREFIX + name, 0.0)

    def mean(name: str) -> float:
        count = grown(f"{name}_count")
        return 1e3 * grown(f"{name}_sum") / count if count else 0.0

    good = [outcome for outcome in outcomes if outcome.error is None and outcome.pieces]
    gaps = [(outcome.pieces[-1] - outcome.pieces[0], outcome.output_tokens - 1) for outcome in good if outcome.output_tokens > 1]
    pairs = (
        ("finished", "requests", float(len(good)), grown("request_success_total")),
        ("prompt", "tokens", float(sum(outcome.prompt_tokens for outcome in good)), grown("prompt_tokens_total")),
        ("output", "tokens", float(sum(outcome.output_tokens for outcome in good)), grown("generation_tokens_total")),
        ("mean TTFT", "ms", _mean_ms([outcome.ttft for outcome in good]), mean("time_to_first_token_seconds")),
        (
            "mean ITL",
            "ms",
            1e3 * sum(seconds for seconds, _ in gaps) / max(1, sum(count for _, count in gaps)),
            mean("inter_token_latency_seconds"),
        ),
        ("mean E2E", "ms", _mean_ms([outcome.total for outcome in good]), mean("e2e_request_latency_seconds")),
    )
    return [Agreement(*pair) for pair in pairs]


def _mean_ms(seconds: Sequence[float]) -> float:
    return 1e3 * sum(seconds) / len(seconds) if seconds else 0.0


def _samples(page: str) -> dict[str, float]:
    """Values by name, summed over labels; buckets are left out."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if "le" not in sample.labels:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums
