"""The Prometheus text of everything in the catalogue, and what of it has vLLM's name besides."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Metric as Family
from prometheus_client.samples import Sample

from jaxserve.metrics import catalogue
from jaxserve.metrics.catalogue import CATALOGUE, Metric
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.shared import open_requests, read_shared
from jaxserve.metrics.vllm_names import OURS, THEIRS, VLLM_METRICS

_LOG = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reading:
    """The value of an `at_scrape` metric: its labels in the catalogue's order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


class Exposition:
    """Renders the metrics of this process, or of all that share theirs with it."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._failed = False

    def text(self, readings: Iterable[Reading]) -> bytes:
        """The text now, `readings` included. Blocks for some milliseconds; any thread may call it.

        The number of active requests is worked out from the counters shown beside it, so that they always agree. Where the
        metrics that processes share cannot be read, the text has `readings` only: what this process counted alone would look
        as if counters went back.
        """
        recorded = self._recorded()
        ours = list(readings)
        theirs = [replace(one, metric=THEIRS[one.metric]) for one in ours if one.metric in THEIRS]
        asked = [*ours, *theirs, *_active(recorded)]
        return generate_latest(_Families(_in_order(recorded, asked)))

    def _recorded(self) -> list[Family]:
        directory = self._instruments.directory
        if directory is None:
            return list(self._instruments.registry.collect())
        try:
            families = read_shared(directory)
        except (OSError, ValueError) as error:  # a file that was cut is no metrics
            if not self._failed:
                _LOG.error("the metrics that the server's processes share cannot be read: %s", error)
            self._failed = True
            return []
        self._failed = False
        return families


def _active(recorded: Sequence[Family]) -> list[Reading]:
    return [Reading(catalogue.REQUESTS_ACTIVE, (model,), count) for model, count in open_requests(recorded).items()]


def _in_order(recorded: Sequence[Family], asked: Sequence[Reading]) -> list[Family]:
    by_name: Mapping[str, Family] = {family.name: family for family in recorded}
    families = []
    for metric in (*CATALOGUE, *VLLM_METRICS):
        shown = Family(metric.full_name, metric.help, metric.kind.value)
        if metric.at_scrape:
            for reading in asked:
                if reading.metric is metric:
                    shown.add_sample(metric.series[0], dict(zip(metric.labels, reading.labels, strict=True)), reading.value)
        else:
            shown.samples = _recorded_as(metric, by_name.get(OURS.get(metric, metric).full_name))
        if shown.samples:
            families.append(shown)
    return families


def _recorded_as(metric: Metric, recorded: Family | None) -> list[Sample]:
    """What was recorded, under our name, with the metric's own; of labels that it does not have the sum."""
    if recorded is None:
        return []
    samples = [sample for sample in recorded.samples if not sample.name.endswith("_created")]
    if metric.full_name == recorded.name:
        return samples
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name in metric.labels)
        key = metric.full_name + sample.name.removeprefix(recorded.name), labels
        sums[key] = sums.get(key, 0.0) + sample.value
    return [Sample(name, dict(labels), value) for (name, labels), value in sums.items()]


class _Families(CollectorRegistry):
    def __init__(self, families: list[Family]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> list[Family]:
        return self._families
