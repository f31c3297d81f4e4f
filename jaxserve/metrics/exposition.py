"""The Prometheus text of everything in the catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Metric as Family

from jaxserve.metrics import catalogue
from jaxserve.metrics.catalogue import CATALOGUE, Metric
from jaxserve.metrics.shared import open_requests, read_shared

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reading:
    """The value of an `at_scrape` metric: its labels in the catalogue's order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


class Exposition:
    """Renders a registry, or a directory where several processes keep their metrics.

    Args:
        registry: this process's.
        directory: where this process and others keep their values, if they do.
    """

    def __init__(self, registry: CollectorRegistry, directory: Path | None) -> None:
        self._registry = registry
        self._directory = directory

    def text(self, readings: Iterable[Reading]) -> bytes:
        """The text now, `readings` included. Blocks for some milliseconds; any thread may call it.

        The number of active requests is worked out from the counters shown beside it, so that they always agree.
        """
        recorded = read_shared(self._directory) if self._directory is not None else list(self._registry.collect())
        asked = [*readings, *_active(recorded)]
        return generate_latest(_Families(_in_order(recorded, asked)))


def _active(recorded: Sequence[Family]) -> list[Reading]:
    return [Reading(catalogue.REQUESTS_ACTIVE, (model,), count) for model, count in open_requests(recorded).items()]


def _in_order(recorded: Sequence[Family], asked: Sequence[Reading]) -> list[Family]:
    """Every metric that has a value, in the catalogue's order."""
    by_name: Mapping[str, Family] = {family.name: family for family in recorded}
    families = []
    for metric in CATALOGUE:
        shown = Family(metric.full_name, metric.help, metric.kind.value)
        if metric.at_scrape:
            for reading in asked:
                if reading.metric is metric:
                    shown.add_sample(metric.series[0], dict(zip(metric.labels, reading.labels, strict=True)), reading.value)
        elif metric.full_name in by_name:
            shown.samples = [sample for sample in by_name[metric.full_name].samples if not sample.name.endswith("_created")]
        if shown.samples:
            families.append(shown)
    return families


class _Families(CollectorRegistry):
    """Families that are there already, as the text's writer wants them."""

    def __init__(self, families: list[Family]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> list[Family]:
        return self._families
