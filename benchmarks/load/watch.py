"""Looks at a server from outside: its metrics page, and the memory and time of its processes."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from jaxserve.metrics import catalogue
from jaxserve.terminal.metrics_page import Change, Page

_MODULE = re.compile(r"run_module\('([\w.]+)'")
_ROLES = {
    "jaxserve.engine.remote.child": "engine",
    "jaxserve.tokenizer.worker": "tokenizer",
    "server.processes.frontend": "front end",
    "server.processes.batches": "batches",
}
_GAUGES = {
    "running": catalogue.NUM_REQUESTS_RUNNING,
    "waiting": catalogue.NUM_REQUESTS_WAITING,
    "pages": catalogue.KV_CACHE_USAGE,
}
_LABELS_LEFT_OUT = ("model_name", "context_tier", "layer", "expert")
_MIB = 2**20


async def read(http: httpx.AsyncClient) -> Page:
    """The metrics page. Raises httpx.HTTPError if there is none."""
    answer = await http.get("/metrics")
    return Page.read(answer.raise_for_status().text, time.perf_counter())


def held(page: Page) -> dict[str, float]:
    """Sequences that run and wait, and the share of pages that they hold."""
    return {name: page.value(metric) for name, metric in _GAUGES.items()}


@dataclass(slots=True)
class Gauges:
    """What gauges said in a minute, sample by sample."""

    seen: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _GAUGES})

    def take(self, page: Page) -> None:
        """Add a sample."""
        for name, value in held(page).items():
            self.seen[name].append(value)

    def told(self) -> dict[str, dict[str, float]]:
        """Mean and most of each that was seen at all."""
        return {
            name: {"mean": round(sum(values) / len(values), 4), "max": max(values)}
            for name, values in self.seen.items()
            if values
        }


def steps(change: Change) -> dict[str, Any]:
    """Steps of a minute, and their rows, tokens and seconds."""
    before, after = (page.sum_and_count(catalogue.BATCH_ROWS)[1] for page in (change.before, change.after))
    made: dict[str, Any] = {"count": after - before}
    for name, metric in (("rows", catalogue.BATCH_ROWS), ("tokens", catalogue.BATCH_TOKENS), ("seconds", catalogue.STEP_SECONDS)):
        figures = {"mean": change.mean(metric), "p50": change.quantile(metric, 0.5), "p99": change.quantile(metric, 0.99)}
        made[name] = {key: round(value, 4) for key, value in figures.items() if value is not None}
    return made


def counters(change: Change) -> dict[str, float]:
    """Every counter that changed, by name and labels, and by how much."""
    grown: dict[str, float] = defaultdict(float)
    for sign, page in ((-1, change.before), (1, change.after)):
        for (name, labels), value in page.samples.items():
            if name.startswith(catalogue.PREFIX) and name.endswith("_total"):
                grown[_named(name, dict(labels))] += sign * value
    return {name: round(value, 3) for name, value in sorted(grown.items()) if value}


def _named(name: str, labels: dict[str, str]) -> str:
    kept = ",".join(f"{key}={value}" for key, value in sorted(labels.items()) if key not in _LABELS_LEFT_OUT)
    return name.removeprefix(catalogue.PREFIX) + (f"{{{kept}}}" if kept else "")


def requests(page: Page) -> dict[str, int]:
    """What became of requests so far. `active` is what the others leave: none is lost if it is 0 once nobody asks any more."""
    parts = {
        "received": catalogue.REQUESTS_RECEIVED,
        "finished": catalogue.REQUESTS_FINISHED,
        "aborted": catalogue.REQUESTS_ABORTED,
        "rejected": catalogue.REQUESTS_REJECTED,
        "active": catalogue.REQUESTS_ACTIVE,
    }
    return {name: int(page.value(metric)) for name, metric in parts.items()}


class Processes:
    """Those of a server.

    Args:
        pid: of the first; the others are below it.
    """

    def __init__(self, pid: int) -> None:
        self._first = psutil.Process(pid)

    def memory(self) -> dict[str, dict[str, float]]:
        """MiB by role, resident and with shared pages divided among those who share them."""
        found: dict[str, dict[str, float]] = defaultdict(lambda: {"rss": 0.0, "pss": 0.0})
        for role, process in self._by_role():
            try:
                full = process.memory_full_info()
            except psutil.Error:  # it ended in the meantime
                continue
            found[role]["rss"] += round(full.rss / _MIB, 1)
            found[role]["pss"] += round(full.pss / _MIB, 1)
        return dict(found)

    def cpu_seconds(self) -> dict[str, float]:
        """User and system seconds so far by role."""
        found: dict[str, float] = defaultdict(float)
        for role, process in self._by_role():
            try:
                found[role] += sum(process.cpu_times()[:2])
            except psutil.Error:
                continue
        return dict(found)

    def _by_role(self) -> list[tuple[str, psutil.Process]]:
        found = [("supervisor", self._first)]
        for process in self._first.children(recursive=True):
            try:
                module = _MODULE.search(" ".join(process.cmdline()))
            except psutil.Error:
                continue
            found.append((_ROLES.get(module[1], module[1]) if module else process.name(), process))
        return found
