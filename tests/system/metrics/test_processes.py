"""Metrics of a server's processes together, while some of them die."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from jaxserve.metrics.catalogue import CATALOGUE, Kind
from tests.support.hash_server import ENGINE, FRONT_END, PATIENCE, HashServer, hash_server, until
from tests.unit.metrics.scrape import values

# The engine counts these itself, from 0 after each of its starts, as Prometheus expects of a process that restarts.
OF_THE_ENGINE = {metric.name for metric in CATALOGUE if metric.at_scrape}
LASTING = tuple(metric for metric in CATALOGUE if metric.kind is not Kind.GAUGE and metric.name not in OF_THE_ENGINE)
Values = dict[tuple[str, tuple[str, ...]], float]


def total(seen: Values, series: str) -> float:
    return sum(value for (name, _), value in seen.items() if name == series)


class Scraper(threading.Thread):
    """Asks for metrics again and again, of whichever front end answers, and checks what it gets."""

    def __init__(self, http: str) -> None:
        super().__init__(daemon=True)
        self._http = http
        self._ended = threading.Event()
        self.wrong: list[str] = []
        self.last: Values = {}
        self.count = 0

    def run(self) -> None:
        while not self._ended.wait(0.02):
            try:
                reply = httpx.get(f"{self._http}/metrics", timeout=PATIENCE)
            except httpx.HTTPError:  # asked of one that died
                continue
            seen = values(reply.content)
            self.count += 1
            self.check(seen)
            self.last = seen

    def check(self, seen: Values) -> None:
        ended = sum(total(seen, f"requests_{fate}_total") for fate in ("finished", "aborted", "rejected"))
        if total(seen, "requests_received_total") != ended + total(seen, "requests_active"):
            self.wrong.append("requests are lost")
        for metric in LASTING:
            for series in metric.series:
                name = series.removeprefix("jaxserve:")
                if total(seen, name) < total(self.last, name):
                    self.wrong.append(f"{name} went back from {total(self.last, name)} to {total(seen, name)}")

    def end(self) -> Values:
        self._ended.set()
        self.join()
        return self.last


def read(http: str) -> None:
    """A stream that lasts, to its end or to that of the process that it comes from."""
    body = {"prompt": "x", "max_tokens": 100, "ignore_eos": True, "stream": True}
    with suppress(httpx.HTTPError), httpx.stream("POST", f"{http}/v1/completions", timeout=PATIENCE, json=body) as reply:
        for _ in reply.iter_lines():
            pass


def ask(server: HashServer, count: int) -> None:
    """Open streams on connections of their own, so that every API server gets some."""
    for _ in range(count):
        threading.Thread(target=read, args=(server.http,), daemon=True).start()


def test_metrics_survive_their_processes(tmp_path: Path) -> None:
    with hash_server(tmp_path, {"frontends": 2}, step_seconds=0.1) as server:
        scraper = Scraper(server.http)
        scraper.start()
        ask(server, 8)
        until(lambda: total(scraper.last, "time_to_first_token_seconds_count") == 8)
        until(lambda: total(scraper.last, "active_streams") == 8)

        busiest = max(server.pids(FRONT_END), key=lambda pid: len(psutil.Process(pid).net_connections("tcp")))
        os.kill(busiest, signal.SIGKILL)
        until(lambda: scraper.last.get(("process_restarts_total", ("frontend",))) == 1)
        until(lambda: scraper.last.get(("requests_aborted_total", ("hash", "process_died")), 0.0) > 0)
        ask(server, 2)  # the other API server may have had none
        until(lambda: total(scraper.last, "time_to_first_token_seconds_count") == 10)
        steps = total(scraper.last, "batch_rows_count")
        os.kill(server.pids(ENGINE)[0], signal.SIGKILL)
        until(lambda: scraper.last.get(("process_restarts_total", ("engine",))) == 1)
        server.until_ready()
        reply = httpx.post(f"{server.http}/v1/completions", json={"prompt": "x", "max_tokens": 5}, timeout=PATIENCE)
        assert reply.status_code == 200
        server.until_idle()
        seen = scraper.end()
    assert scraper.wrong == []
    assert scraper.count > 20
    assert total(seen, "requests_active") == total(seen, "active_streams") == 0
    aborted = {labels[1]: value for (name, labels), value in seen.items() if name == "requests_aborted_total"}
    assert aborted.keys() == {"process_died"}, "what the engine ran resumes in the next one"
    assert sum(aborted.values()) + total(seen, "requests_finished_total") == 11
    assert total(seen, "requests_received_total") == 11
    assert total(seen, "batch_rows_count") > steps > 0
    assert ("process_resident_memory_bytes", ("engine",)) in seen
    assert seen["process_resident_memory_bytes", ("frontend",)] > 2 * 30 * 2**20
