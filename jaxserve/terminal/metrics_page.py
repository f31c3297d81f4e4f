"""What a server's metrics page says, and what changed between two of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from prometheus_client.parser import text_string_to_metric_families

from jaxserve.metrics.catalogue import Metric


@dataclass(frozen=True, slots=True)
class Page:
    """One reading, summed over labels but those asked for.

    Attributes:
        time: seconds.
        samples: (sample name, its labels) -> value.
    """

    time: float
    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    def read(cls, text: str, time: float) -> Page:
        """Parse a page in Prometheus's text format. Raises ValueError if it is none."""
        samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples[sample.name, frozenset(sample.labels.items())] = sample.value
        return cls(time, samples)

    def value(self, metric: Metric) -> float:
        return self._total(metric.series[0])

    def by_label(self, metric: Metric, label: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for (name, labels), value in self.samples.items():
            if name == metric.series[0]:
                key = dict(labels).get(label, "")
                found[key] = found.get(key, 0.0) + value
        return found

    def of_model(self, model: str) -> Page:
        """What is of one model alone, and what is of none."""
        own = {key: value for key, value in self.samples.items() if dict(key[1]).get("model_name", model) == model}
        return replace(self, samples=own)

    def label_values(self, label: str) -> list[str]:
        return sorted({value for _, labels in self.samples for name, value in labels if name == label})

    def _total(self, series: str) -> float:
        return sum(value for (name, _), value in self.samples.items() if name == series)

    def buckets(self, metric: Metric) -> dict[float, float]:
        """A histogram's counts up to each bound."""
        found: dict[float, float] = {}
        for (name, labels), value in self.samples.items():
            if name == metric.series[0]:
                bound = float(dict(labels)["le"])
                found[bound] = found.get(bound, 0.0) + value
        return found

    def sum_and_count(self, metric: Metric) -> tuple[float, float]:
        return self._total(metric.series[1]), self._total(metric.series[2])


@dataclass(frozen=True, slots=True)
class Change:
    """From one page to a later one. Counters of a server that restarted between them count from 0."""

    before: Page
    after: Page

    @property
    def seconds(self) -> float:
        return self.after.time - self.before.time

    def rate(self, metric: Metric) -> float:
        return _grown(self.before.value(metric), self.after.value(metric)) / self.seconds if self.seconds > 0 else 0.0

    def share(self, part: Metric, whole: Metric) -> float | None:
        """One counter's growth over another's; None if that did not grow."""
        grown = _grown(self.before.value(whole), self.after.value(whole))
        return _grown(self.before.value(part), self.after.value(part)) / grown if grown else None

    def mean(self, metric: Metric) -> float | None:
        """Mean of what a histogram took in; None if that was nothing."""
        (sum_before, count_before), (sum_after, count_after) = self.before.sum_and_count(metric), self.after.sum_and_count(metric)
        if count_after < count_before:
            sum_before = count_before = 0.0
        return (sum_after - sum_before) / (count_after - count_before) if count_after > count_before else None

    def quantile(self, metric: Metric, share: float) -> float | None:
        """A quantile of what a histogram took in, as Prometheus's histogram_quantile estimates it; None if that was nothing."""
        before, after = self.before.buckets(metric), self.after.buckets(metric)
        if after.get(math.inf, 0.0) < before.get(math.inf, 0.0):
            before = {}
        counts = [(bound, count - before.get(bound, 0.0)) for bound, count in sorted(after.items())]
        total = counts[-1][1] if counts else 0.0
        if total <= 0:
            return None
        low, below = 0.0, 0.0
        for bound, count in counts:
            if count >= share * total:
                if math.isinf(bound):
                    return low
                return low + (bound - low) * (share * total - below) / (count - below) if count > below else bound
            low, below = bound, count
        return low


def _grown(before: float, after: float) -> float:
    return after - before if after >= before else after
