"""The catalogue's metrics as prometheus-client objects of one registry of this process."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.mmap_dict import MmapedDict

from jaxserve.config.runtime import share_metrics_in
from jaxserve.metrics.catalogue import CATALOGUE, Kind, Metric
from jaxserve.metrics.shared import allocate_files, carry


class BulkHistogram(Histogram):
    """A histogram that takes many values at once: one write for each bucket they fall in, where `observe` makes two a value.

    A write costs microseconds, more where processes share their metrics, and 256 streams give thousands of values a second.
    """

    def observe_many(self, values: Sequence[float]) -> None:
        self._sum.inc(sum(values))
        for place, count in Tally([bisect_left(self._upper_bounds, value) for value in values]).items():
            self._buckets[place].inc(count)


class Instruments:
    """What recorders write to. Where PROMETHEUS_MULTIPROC_DIR was set when this process started, other processes can read it.

    Attributes:
        registry: holds the objects; nothing else is in it.
        directory: where processes that share their metrics are read from; None for this process alone.
    """

    def __init__(self, directory: Path | None = None) -> None:
        allocate_files()
        self.registry = CollectorRegistry(auto_describe=True)
        self.directory = directory
        self._objects: dict[str, Counter | Gauge | BulkHistogram] = {
            metric.name: self._make(metric) for metric in CATALOGUE if not metric.at_scrape
        }

    def counter(self, metric: Metric) -> Counter:
        found = self._objects[metric.name]
        assert isinstance(found, Counter), f"{metric.name} is a {metric.kind}"
        return found

    def gauge(self, metric: Metric) -> Gauge:
        found = self._objects[metric.name]
        assert isinstance(found, Gauge), f"{metric.name} is a {metric.kind}"
        return found

    def histogram(self, metric: Metric) -> BulkHistogram:
        found = self._objects[metric.name]
        assert isinstance(found, BulkHistogram), f"{metric.name} is a {metric.kind}"
        return found

    def move(self, directory: Path) -> None:
        """Go on writing in another directory, with every value. To be called by the thread that records. Raises OSError."""
        share_metrics_in(directory)
        for values in self._files():
            carry(values, directory)

    def _files(self) -> list[MmapedDict]:
        found: dict[str, MmapedDict] = {}
        for metric in self._objects.values():
            for one in metric._metrics.values() if metric._labelnames else (metric,):
                file = getattr(getattr(one, "_sum" if isinstance(one, Histogram) else "_value"), "_file", None)
                if isinstance(file, MmapedDict):  # else this process keeps its metrics to itself
                    found[file._fname] = file
        return list(found.values())

    def _make(self, metric: Metric) -> Counter | Gauge | BulkHistogram:
        name, text, labels = metric.full_name, metric.help, metric.labels
        if metric.kind is Kind.COUNTER:
            return Counter(name, text, labels, registry=self.registry)
        if metric.kind is Kind.GAUGE:  # what live processes hold adds up, a dead one holds nothing
            return Gauge(name, text, labels, registry=self.registry, multiprocess_mode="livesum")
        return BulkHistogram(name, text, labels, registry=self.registry, buckets=metric.buckets)
