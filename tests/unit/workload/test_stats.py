"""Histograms and time lines: what they keep exactly, and how far off they may be."""

from typing import Any

import numpy as np
import pytest

from jaxserve.workload.stats import Histogram, Percentiles, Timeline


def test_percentiles_are_values_that_occurred() -> None:
    found = Percentiles.of(np.arange(1.0, 101.0))
    assert (found.count, found.mean, found.p50, found.p90, found.p99, found.max) == (100, 50.5, 50.0, 90.0, 99.0, 100.0)


def test_nothing_has_no_percentiles() -> None:
    assert Percentiles.of(np.zeros(0)) == Histogram().percentiles() == Percentiles(0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_histogram_is_within_half_a_percent() -> None:
    values = np.random.default_rng(0).lognormal(-4.0, 1.0, 20_000)
    histogram = Histogram()
    for value in values.tolist():
        histogram.add(value)
    exact, found = Percentiles.of(values), histogram.percentiles()
    for name in ("p50", "p90", "p99"):
        assert getattr(found, name) == pytest.approx(getattr(exact, name), rel=0.0051)
    assert found.mean == pytest.approx(exact.mean)
    assert found.max == exact.max
    assert len(histogram.counts) < 1200


def test_equal_values_come_back_exactly() -> None:
    histogram = Histogram()
    for _ in range(10):
        histogram.add(0.0123)
    mean: Any = pytest.approx(0.0123)
    assert histogram.percentiles() == Percentiles(10, mean, 0.0123, 0.0123, 0.0123, 0.0123)


def test_merging_is_adding() -> None:
    parts, whole = [Histogram(), Histogram()], Histogram()
    for place, value in enumerate([0.01, 0.02, 0.02, 0.5, 0.01]):
        parts[place % 2].add(value)
        whole.add(value)
    parts[0].merge(parts[1])
    assert parts[0].percentiles() == whole.percentiles()
    assert parts[0].counts == whole.counts


def test_timeline_stays_small_and_loses_nothing() -> None:
    line = Timeline(max_bins=8, width=1.0)
    for second in range(100):
        line.count(second, "requests")
        line.level(second, {"queue": float(second)}, 1.0)
    series = line.series(["requests", "queue"])
    assert line.width == 16.0
    assert len(series["requests"]) == len(series["queue"]) == 7
    assert sum((value or 0.0) * line.width for value in series["requests"]) == 100
    assert series["queue"][0] == pytest.approx(7.5)


def test_timeline_tells_idle_from_zero() -> None:
    line = Timeline(max_bins=8, width=1.0)
    line.level(0.5, {"queue": 0.0}, 0.1)
    line.level(2.5, {"queue": 4.0}, 0.1)
    assert line.series(["queue"]) == {"queue": [0.0, None, 4.0]}
