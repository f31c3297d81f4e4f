"""Generated workloads and traces."""

from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

import pytest

from jaxserve.errors import ConfigError
from jaxserve.simulation.settings import Outage, parse_outages
from jaxserve.types import ServiceClass
from jaxserve.workload.arrivals import ArrivalProcess
from jaxserve.workload.generate import arrival_process, generate
from jaxserve.workload.requests import WorkloadRequest
from jaxserve.workload.settings import WorkloadConfig, parse_classes, parse_shares
from jaxserve.workload.trace import read_trace
from tests.unit.simulation.support import request, trace

PAID, FREE, BATCH = ServiceClass


def count(process: ArrivalProcess, start: float, end: float) -> int:
    times = list(takewhile(lambda time: time < end, process.times(Random(1))))
    assert times == sorted(times)
    return sum(time >= start for time in times)


def test_poisson_has_its_rate() -> None:
    process = arrival_process(WorkloadConfig(rate=20.0))
    assert count(process, 0, 500) == pytest.approx(10_000, rel=0.04)


def test_spike_is_ten_times_the_rate() -> None:
    process = arrival_process(WorkloadConfig(rate=20.0, requests=6000, arrivals="spike"))
    assert (process.start, process.duration) == (100.0, 10.0)
    assert count(process, 0, 100) == pytest.approx(2000, rel=0.08)
    assert count(process, 100, 110) == pytest.approx(2000, rel=0.08)


def test_bursts_fill_a_tenth_of_each_period() -> None:
    process = arrival_process(WorkloadConfig(rate=10.0, arrivals="bursts", peak=5.0, period_s=100.0))
    assert [process.rate_at(time) for time in (0, 9.9, 10.1, 99, 100, 110.1)] == [50, 50, 10, 10, 50, 10]
    assert count(process, 200, 210) == pytest.approx(500, rel=0.15)


def test_day_has_its_mean_and_its_swing() -> None:
    process = arrival_process(WorkloadConfig(rate=10.0, arrivals="diurnal", requests=10_000))
    assert process.rate_at(500) == pytest.approx(4 * process.rate_at(0))
    assert count(process, 0, 1000) == pytest.approx(10_000, rel=0.04)


def test_same_seed_same_requests() -> None:
    config = WorkloadConfig(requests=200, prefixes=3, prefix_tokens=20, tenants="a=20,b=1")
    first = list(generate(config, 4096, PAID))
    assert first == list(generate(config, 4096, PAID))
    other = WorkloadConfig(requests=200, prefixes=3, prefix_tokens=20, tenants="a=20,b=1", seed=1)
    assert first != list(generate(other, 4096, PAID))
    assert {item.prefix for item in first} == {0, 1, 2}
    tenants = [item.tenant for item in first]
    assert tenants.count("a") > 10 * tenants.count("b") > 0


def test_lengths_have_their_median_and_fit_the_context() -> None:
    requests = list(generate(WorkloadConfig(requests=4000, prompt_tokens=500, output_tokens=100, prompt_sigma=1.5), 2000, PAID))
    assert all(item.prompt_tokens + item.output_tokens <= 2000 for item in requests)
    assert all(item.output_tokens >= 1 for item in requests)
    prompts = sorted(item.prompt_tokens for item in requests)
    assert prompts[2000] == pytest.approx(500, rel=0.08)
    assert prompts[-1] > 1900


def test_prompts_differ_after_their_shared_prefix() -> None:
    one = WorkloadRequest(0, 0.0, 40, 1, PAID, prefix=2, prefix_tokens=30).tokens()
    two = WorkloadRequest(1, 0.0, 50, 1, PAID, prefix=2, prefix_tokens=30).tokens()
    other = WorkloadRequest(2, 0.0, 40, 1, PAID, prefix=3, prefix_tokens=30).tokens()
    alone = WorkloadRequest(3, 0.0, 1, 1, PAID).tokens()
    assert (len(one), len(two), len(alone)) == (40, 50, 1)
    assert one[:30] == two[:30] != other[:30]
    assert one[30] != two[30]
    assert all(0 <= token < 2**31 for token in one + other + alone)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 0.0}, "rate must be above 0"),
        ({"rate": float("inf")}, "rate must be above 0"),
        ({"requests": 0}, "requests must be at least 1"),
        ({"prompt_tokens": -5}, "prompt_tokens must be at least 1, got -5"),
        ({"prompt_sigma": 50.0}, "prompt_sigma must be between 0 and 5"),
        ({"retries": -1}, "retries must be between 0 and 20"),
        ({"prefixes": 2}, r"prefixes \(2\) and prefix_tokens \(0\) need each other"),
        ({"peak": 3.0}, "peak is for arrivals bursts and diurnal and spike, not poisson"),
        ({"arrivals": "spike", "period_s": 3.0}, "period_s is for arrivals bursts and diurnal, not spike"),
        ({"arrivals": "spike", "peak": 0.5}, "peak must be at least 1"),
        ({"arrivals": "bursts", "period_s": 0.0}, "period_s must be above 0"),
        ({"trace": "t.jsonl", "rate": 3.0}, "rate is for generated requests"),
        ({"trace": "t.jsonl", "tenants": "a=1,b=1"}, "tenants is for generated requests"),
        ({"trace": "t.jsonl", "classes": "batch=1"}, "classes is for generated requests"),
        ({"classes": "batch=1,gold=2"}, "classes must be of interactive_paid, interactive_free, batch, got 'gold'"),
        ({"classes": "batch"}, "classes must be NAME=SHARE"),
        ({"tenants": "a=0"}, "tenants must be NAME=SHARE"),
    ],
)
def test_impossible_workloads_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkloadConfig(**settings)


def test_typical_request_must_fit() -> None:
    with pytest.raises(ConfigError, match=r"0 \+ 512 \+ 128 tokens, but the context is 600"):
        next(generate(WorkloadConfig(), 600, PAID))


@pytest.mark.parametrize("text", ["a", "a=0", "a=-1", "a=x", "=1", "a=1,a=2", "a=inf", "a=nan", ""])
def test_bad_tenants(text: str) -> None:
    with pytest.raises(ConfigError, match="tenants must be NAME=SHARE"):
        parse_shares(text, "tenants")


def test_classes_have_their_shares() -> None:
    assert parse_classes("batch=1,interactive_free=3") == {BATCH: 1.0, FREE: 3.0}
    named = WorkloadConfig(requests=400, classes="batch=1,interactive_free=3")
    classes = [item.service_class for item in generate(named, 4096, PAID)]
    assert classes.count(FREE) == pytest.approx(300, rel=0.1)
    assert set(classes) == {FREE, BATCH}
    plain = list(generate(WorkloadConfig(requests=400), 4096, BATCH))
    assert {item.service_class for item in plain} == {BATCH}
    arrivals = [item.arrival for item in generate(named, 4096, PAID)]
    assert arrivals == [item.arrival for item in plain], "classes change nothing else"


def test_outages() -> None:
    assert parse_outages(None, 1) == ()
    assert parse_outages("0@1.5,1@2-9", 2) == (Outage(0, 1.5, None), Outage(1, 2.0, 9.0))


@pytest.mark.parametrize("text", ["0", "x@1", "0@", "0@-1", "2@1", "-1@1", "0@5-4", "0@5-5", "0@inf", "0@nan", "0@1-"])
def test_bad_outages(text: str) -> None:
    with pytest.raises(ConfigError, match="fail "):
        parse_outages(text, 2)


def test_trace_is_read_as_it_is(tmp_path: Path) -> None:
    times = {"queue_timeout": 2.5, "timeout": 60}
    full = request(1.5, 40, 5, tenant="b", prefix=7, prefix_tokens=16, **{"class": "batch"}, **times)
    path = trace(tmp_path / "t.jsonl", request(0, 3, 1), "", full)
    assert list(read_trace(Path(path), 64, FREE)) == [
        WorkloadRequest(0, 0.0, 3, 1, FREE),
        WorkloadRequest(1, 1.5, 40, 5, BATCH, "b", 7, 16, 2.5, 60),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ({"arrival": 1, "prompt_tokens": 3}, "output_tokens is missing"),
        (request(-1, 3, 1), "arrival must be seconds of at least 0, got -1"),
        ('{"arrival": NaN, "prompt_tokens": 3, "output_tokens": 1}', "arrival must be seconds of at least 0, got NaN"),
        ('{"arrival": 1e999, "prompt_tokens": 3, "output_tokens": 1}', "arrival must be seconds"),
        (request(True, 3, 1), "arrival must be seconds"),
        (request(1, -3, 1), "prompt_tokens must be a whole number of at least 1, got -3"),
        (request(1, 3, 0), "output_tokens must be a whole number of at least 1, got 0"),
        (request(1, 3.5, 1), "prompt_tokens must be a whole number"),
        (request(1, 60, 5), "prompt_tokens 60 [+] output_tokens 5 is more than the context's 64"),
        (request(1, 3, 1, priority=2), "unknown key 'priority'"),
        (request(1, 3, 1, tenant=5), "tenant must be a string, got 5"),
        (request(1, 3, 1, tenant="a\nb"), "tenant must be a string of at most 128 printable characters"),
        (request(1, 3, 1, **{"class": "gold"}), 'class must be one of interactive_paid, interactive_free, batch, got "gold"'),
        (request(1, 3, 1, queue_timeout=0), "queue_timeout must be a finite number of seconds above 0, got 0"),
        (request(1, 3, 1, timeout="soon"), "timeout must be a finite number of seconds above 0, got 'soon'"),
        (request(1, 3, 1, prefix=5), "prefix and prefix_tokens need each other"),
        (request(1, 30, 1, prefix=5, prefix_tokens=30), "prefix_tokens 30 must be less than prompt_tokens 30"),
        (request(1, 30, 1, prefix=2**24, prefix_tokens=3), "prefix must be at most"),
        (request(0.25, 3, 1), "arrival 0.25 is before the line above's 0.5"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, line: object, message: str) -> None:
    path = trace(tmp_path / "t.jsonl", request(0.5, 3, 1), line)
    with pytest.raises(ConfigError, match=message) as caught:
        list(read_trace(Path(path), 64, PAID))
    assert caught.value.message.startswith(f"{path}:2: ")


def test_unreadable_traces(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, message in (("none", "No such file"), ("empty", "no requests"), ("binary", "not UTF-8")):
        with pytest.raises(ConfigError, match=message):
            list(read_trace(tmp_path / name, 64, PAID))
