import os

import psutil
import pytest
from prometheus_client import CollectorRegistry, Histogram

from jaxserve.metrics import catalogue
from jaxserve.metrics.instruments import BulkHistogram, Instruments
from jaxserve.metrics.process import ProcessRecorder
from tests.unit.metrics.scrape import recorded


def test_many_values_at_once_are_as_if_one_by_one():
    one, many = CollectorRegistry(), CollectorRegistry()
    values = [0.5, 1.0, 1.0000001, 2.0, 0.0, 99.0, 4.0]
    single = Histogram("x", "x", ["a"], buckets=(1.0, 2.0, 4.0), registry=one).labels("b")
    for value in values:
        single.observe(value)
    bulk = BulkHistogram("x", "x", ["a"], buckets=(1.0, 2.0, 4.0), registry=many).labels("b")
    bulk.observe_many(values[:3])
    bulk.observe_many([])
    bulk.observe_many(values[3:])

    def samples(registry):
        return [(one.name, one.labels, one.value) for one in next(iter(registry.collect())).samples if "created" not in one.name]

    assert samples(one) == samples(many)


def test_an_instrument_is_asked_for_by_its_kind():
    instruments = Instruments()
    with pytest.raises(AssertionError, match="is a counter"):
        instruments.gauge(catalogue.PROMPT_TOKENS)
    with pytest.raises(KeyError):
        instruments.gauge(catalogue.KV_CACHE_USAGE)  # asked for when somebody looks, and not recorded


@pytest.mark.parametrize(("restarts", "counted"), [(0, 0), (1, 1), (5, 1)])
def test_a_process_counts_its_own_start_and_tells_its_memory(restarts, counted):
    instruments = Instruments()
    ProcessRecorder(instruments, "engine", restarts)
    seen = recorded(instruments)
    assert seen["process_restarts_total", ("engine",)] == counted
    resident = psutil.Process(os.getpid()).memory_info().rss
    assert seen["process_resident_memory_bytes", ("engine",)] == pytest.approx(resident, rel=0.1)
