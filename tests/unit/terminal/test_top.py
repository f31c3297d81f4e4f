"""Reading metrics pages, and the screen made of two of them."""

import io
import math

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from rich.console import Console

from jaxserve import top
from jaxserve.metrics import catalogue
from jaxserve.metrics.catalogue import Kind
from jaxserve.terminal.metrics_page import Change, Page
from jaxserve.terminal.screen import screen, sparkline


def quantile(change, metric, share):
    value = change.quantile(metric, share)
    assert value is not None
    return value


class Server:
    """Every metric of the catalogue in a registry of its own."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.metrics = {}
        for metric in catalogue.CATALOGUE:
            kinds = {Kind.COUNTER: Counter, Kind.GAUGE: Gauge, Kind.HISTOGRAM: Histogram}
            more = {"buckets": metric.buckets} if metric.kind is Kind.HISTOGRAM else {}
            made = kinds[metric.kind](metric.full_name, metric.help, metric.labels, registry=self.registry, **more)
            self.metrics[metric.name] = made

    def child(self, metric, **labels):
        values = {name: labels.get(name, "m" if name == "model_name" else "x") for name in metric.labels}
        return self.metrics[metric.name].labels(**values) if values else self.metrics[metric.name]

    def page(self, time):
        return Page.read(generate_latest(self.registry).decode(), time)


def test_rates_means_and_quantiles_are_of_the_time_between_two_pages():
    server = Server()
    tokens, ttft = server.child(catalogue.GENERATION_TOKENS), server.child(catalogue.TIME_TO_FIRST_TOKEN)
    tokens.inc(1000)
    ttft.observe(70.0)
    before = server.page(10.0)
    tokens.inc(50)
    server.child(catalogue.GENERATION_TOKENS, service_class="batch").inc(10)
    for seconds in [0.03] * 90 + [0.2] * 10:
        ttft.observe(seconds)
    change = Change(before, server.page(12.0))
    assert change.rate(catalogue.GENERATION_TOKENS) == 30.0
    assert change.mean(catalogue.TIME_TO_FIRST_TOKEN) == pytest.approx(0.047)
    assert 0.02 < quantile(change, catalogue.TIME_TO_FIRST_TOKEN, 0.5) <= 0.04
    assert 0.1 < quantile(change, catalogue.TIME_TO_FIRST_TOKEN, 0.99) <= 0.25
    assert change.mean(catalogue.E2E_LATENCY) is None
    assert change.quantile(catalogue.E2E_LATENCY, 0.5) is None


SHOWN = (catalogue.TIME_TO_FIRST_TOKEN, catalogue.INTER_TOKEN_LATENCY, catalogue.QUEUE_TIME, catalogue.PREFILL_TIME)


@pytest.mark.parametrize("metric", SHOWN, ids=lambda metric: metric.name)
@pytest.mark.parametrize("seconds", [0.0004, 0.0008, 0.0015, 0.0025, 0.004, 0.007, 0.009])
def test_what_takes_less_than_ten_milliseconds_is_told_apart(metric, seconds):
    server = Server()
    before = server.page(0.0)
    for _ in range(100):
        server.child(metric).observe(seconds)
    change = Change(before, server.page(1.0))
    assert change.quantile(metric, 0.5) == pytest.approx(seconds, abs=max(0.00075, seconds / 4))


def test_values_beyond_the_last_bucket_count_as_its_bound():
    server = Server()
    before = server.page(0.0)
    server.child(catalogue.TIME_TO_FIRST_TOKEN).observe(1e6)
    change = Change(before, server.page(1.0))
    assert change.quantile(catalogue.TIME_TO_FIRST_TOKEN, 0.5) == catalogue.TIME_TO_FIRST_TOKEN.buckets[-1]
    assert not math.isinf(catalogue.TIME_TO_FIRST_TOKEN.buckets[-1])


def test_a_server_that_restarted_counts_from_zero():
    old, new = Server(), Server()
    old.child(catalogue.GENERATION_TOKENS).inc(500)
    old.child(catalogue.TIME_TO_FIRST_TOKEN).observe(5.0)
    old.child(catalogue.TIME_TO_FIRST_TOKEN).observe(5.0)
    new.child(catalogue.GENERATION_TOKENS).inc(20)
    new.child(catalogue.TIME_TO_FIRST_TOKEN).observe(0.01)
    change = Change(old.page(0.0), new.page(2.0))
    assert change.rate(catalogue.GENERATION_TOKENS) == 10.0
    assert change.mean(catalogue.TIME_TO_FIRST_TOKEN) == pytest.approx(0.01)
    assert quantile(change, catalogue.TIME_TO_FIRST_TOKEN, 0.5) <= 0.01


def shown(change, rates=(1.0, 2.0)):
    file = io.StringIO()
    console = Console(file=file, width=100)
    console.print(screen("http://x", change, rates))
    return file.getvalue()


def test_the_screen_of_an_idle_server_and_of_a_busy_one():
    server = Server()
    server.child(catalogue.ENGINE_UP).set(1)
    before = server.page(0.0)
    assert "no prompts" in shown(Change(before, server.page(1.0)))
    server.child(catalogue.NUM_REQUESTS_RUNNING).set(7)
    server.child(catalogue.KV_CACHE_USAGE).set(0.5)
    server.child(catalogue.PREFIX_CACHE_QUERIES).inc(100)
    server.child(catalogue.PREFIX_CACHE_HITS).inc(25)
    server.child(catalogue.BATCH_ROWS).observe(7)
    server.child(catalogue.STEP_SECONDS).observe(0.004)
    server.child(catalogue.REQUESTS_REJECTED, reason="queue_full").inc(3)
    text = shown(Change(before, server.page(1.0)))
    for words in ("7 running", "50.0%", "25.0% of prompt tokens", "7.0 rows and 4.0 ms", "rejected: queue_full", "up"):
        assert words in text
    assert "preemptions" not in text
    server.child(catalogue.ENGINE_UP).set(0)
    assert "the engine takes no requests" in shown(Change(before, server.page(2.0)))


def test_what_became_of_drafts():
    server = Server()
    before = server.page(0.0)
    assert "drafts" not in shown(Change(before, before))
    for metric, count in (
        (catalogue.SPEC_DRAFTS, 10),
        (catalogue.SPEC_DRAFT_TOKENS, 40),
        (catalogue.SPEC_ACCEPTED_TOKENS, 25),
        (catalogue.SPEC_SECONDS, 0.02),
    ):
        server.child(metric).inc(count)
    after = server.page(2.0)
    text = shown(Change(before, after))
    for words in ("62.5% right", "3.50 tokens a row and step", "7.5 a second wasted", "1.0% of the time"):
        assert words in text
    assert "none verified" in shown(Change(after, server.page(3.0)))


def test_a_sparkline_is_as_high_as_its_largest_value():
    assert sparkline([0.0, 4.0, 8.0]) == " ▄█"
    assert sparkline([0.0, 0.0]) == "  "
    assert sparkline([]) == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["http://127.0.0.1:9"], "cannot talk to http://127.0.0.1:9"),
        (["--interval", "0"], "interval must be at least 0.1"),
        (["localhost:8000"], "cannot talk to"),
        (["--nope"], "unrecognized arguments: --nope"),
    ],
)
def test_a_server_that_cannot_be_watched_is_one_line(arguments, says, capsys):
    assert top.main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
