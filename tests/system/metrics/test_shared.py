"""Metrics of several real processes in one directory."""

import os
import subprocess
import sys

import pytest

from jaxserve.metrics.exposition import Exposition
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.shared import read_shared, remove_process
from tests.unit.metrics.scrape import values

# A front end with requests in every state, which waits to be told to end.
CHILD = """
import sys
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.requests import Objective, RequestRecorder
from jaxserve.metrics.servers import ServerRecorder
from jaxserve.types import ServiceClass

instruments = Instruments()
recorder = RequestRecorder(instruments, "pico", Objective(1.0, 0.1))
servers = ServerRecorder(instruments)
recorder.received()
recorder.received()
recorder.received().rejected("queue_full")
record = recorder.received()
record.prepared(ServiceClass.BATCH, 5, 0.0)
record.started(5, 0.0, 0.3)
record.tokens(0, 1, 0.3)
record.tokens(0, 1, 0.4)
record.ended(0, "length", 2, 0.4)
record.finished()
with servers.stream("http"):
    recorder.flush(1.0)
    print("ready", flush=True)
    sys.stdin.readline()
"""


class Child:
    def __init__(self, directory):
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory)}
        self.popen = subprocess.Popen(
            [sys.executable, "-c", CHILD], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.popen.stdout is not None
        assert self.popen.stdout.readline() == "ready\n"

    def kill(self):
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture
def children(tmp_path):
    started = [Child(tmp_path), Child(tmp_path)]
    yield started
    for child in started:
        child.kill()


def shown(directory):
    return values(Exposition(Instruments(directory)).text([]))


def conserved(seen):
    def total(name):
        return sum(value for (metric, _), value in seen.items() if metric == name)

    ended = sum(total(f"requests_{outcome}_total") for outcome in ("finished", "aborted", "rejected"))
    return total("requests_received_total") == ended + total("requests_active")


def test_live_processes_add_up_and_what_a_dead_one_counted_stays(tmp_path, children):
    batch, model = ("1k", "pico", "batch"), ("pico",)
    seen = shown(tmp_path)
    assert seen["requests_received_total", model] == 8
    assert seen["requests_active", model] == 4
    assert seen["active_streams", ("http",)] == 2
    assert seen["inter_token_latency_seconds_count", batch] == 2
    assert seen["inter_token_latency_seconds_sum", batch] == pytest.approx(0.2)
    assert conserved(seen)
    before = seen

    dead = children[0]
    dead.kill()
    seen = shown(tmp_path)  # killed, not buried: its streams are gone
    assert seen["active_streams", ("http",)] == 1
    remove_process(tmp_path, dead.popen.pid)
    seen = shown(tmp_path)
    assert seen["requests_aborted_total", ("pico", "process_died")] == 2
    assert seen["requests_active", model] == 2
    assert seen["active_streams", ("http",)] == 1
    assert conserved(seen)
    lasting = {key: value for key, value in before.items() if key[0] not in ("requests_active", "active_streams")}
    assert {key: seen[key] for key in lasting} == lasting, "a counter went back"

    remove_process(tmp_path, dead.popen.pid)  # again: nothing is left of it
    assert shown(tmp_path) == seen
    children[1].kill()
    remove_process(tmp_path, children[1].popen.pid)
    seen = shown(tmp_path)
    assert seen["requests_aborted_total", ("pico", "process_died")] == 4
    assert seen["requests_active", model] == 0
    assert ("active_streams", ("http",)) not in seen
    assert {key: seen[key] for key in lasting} == lasting
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counter_dead.db", "histogram_dead.db"]


def test_an_empty_directory_has_no_metrics(tmp_path):
    assert read_shared(tmp_path) == []
    assert shown(tmp_path) == {}
