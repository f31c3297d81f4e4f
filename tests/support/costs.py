"""Count what tests cost: seconds, compiled programs, engines, processes, browsers and Ray clusters.

A pytest plugin (see `tests/conftest.py`). It ends a run with the time of every folder and of the slowest files. A run of
`make test` fails if a folder's count exceeds its limit in `tests/budget.json`. `pytest --write-budget` writes that file from a
whole run, with some room for compilations and processes. A test in `tests/unit` that compiles a program or starts a process
fails.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

CPU_INFO = Path("/proc/cpuinfo")
BUDGET = Path(__file__).parents[1] / "budget.json"
SLOWEST = 25
_COMPILED = "/jax/core/compile/backend_compile_duration"  # a program was compiled, or read from the cache of compiled programs
_ENGINE = ("jaxserve.executor.local", "LocalExecutor")
_ROOM = {"compilations": (1.15, 20), "processes": (1.15, 2)}  # which files share a process is chance, and so are second tries
_UNIT = "tests/unit/"


@dataclass
class Cost:
    """Of a test, a file or a folder. Compilations are those of the test's own process."""

    seconds: float = 0.0
    compilations: int = 0
    engines: int = 0
    processes: int = 0
    browsers: int = 0
    clusters: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(ours + theirs for ours, theirs in zip(astuple(self), astuple(other), strict=True)))

    def since(self, before: Cost) -> Cost:
        return Cost(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


COUNTED = tuple(field.name for field in fields(Cost) if field.name != "seconds")


class Counters:
    """Of this process, from when it is made."""

    def __init__(self) -> None:
        self._cost = Cost()
        self._hooked: set[str] = set()
        self.by_this_thread: Counter[str] = Counter()  # what the tests themselves do: other threads may belong to earlier tests
        self._thread = threading.get_ident()
        sys.addaudithook(self._audit)

    def now(self) -> Cost:
        self._hook()
        self._cost.seconds = time.perf_counter()
        return Cost(*astuple(self._cost))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec"):
            return
        self._cost.processes += event != "os.exec"
        self.by_this_thread["processes"] += threading.get_ident() == self._thread
        command = " ".join(map(str, arguments[1])) if event == "subprocess.Popen" and len(arguments) > 1 else ""
        program = command.split(" ", 1)[0].rsplit("/", 1)[-1]
        self._cost.browsers += program.startswith("chrom") or command.endswith(" run-driver")  # Playwright's, which starts one
        self._cost.clusters += program == "raylet" or " start --head" in command

    def _hook(self) -> None:
        """Watch what has been imported meanwhile: this module imports neither jax nor engines."""
        monitoring, engine = sys.modules.get("jax.monitoring"), sys.modules.get(_ENGINE[0])
        if monitoring is not None and "jax" not in self._hooked:
            self._hooked.add("jax")
            monitoring.register_event_duration_secs_listener(self._compiled)
        if engine is not None and "engine" not in self._hooked and (built := getattr(engine, _ENGINE[1], None)) is not None:
            self._hooked.add("engine")
            build = built.__init__

            @wraps(build)
            def counted(*args: Any, **kwargs: Any) -> None:
                self._cost.engines += 1
                build(*args, **kwargs)

            built.__init__ = counted

    def _compiled(self, event: str, _: float, **__: Any) -> None:
        self._cost.compilations += event == _COMPILED
        self.by_this_thread["compilations"] += event == _COMPILED and threading.get_ident() == self._thread


class Costs:
    """The plugin: one in each worker, and one where the run is controlled, which gathers and judges."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._counters = Counters()
        self._began = time.perf_counter()
        self._files: defaultdict[str, Cost] = defaultdict(Cost)
        self._exceeded: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = self._counters.now()
        result = yield
        self._files[item.nodeid.partition("::")[0]] += self._counters.now().since(before)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._strictly(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._strictly(item))

    def _strictly(self, item: pytest.Item) -> Iterator[None]:
        """Fail a unit test that compiles or starts a process."""
        self._counters.now()
        before = self._counters.by_this_thread.copy()
        result = yield
        if item.nodeid.startswith(_UNIT) and (done := self._counters.by_this_thread - before):
            counts = " and ".join(f"{count} {name}" for name, count in done.items())
            pytest.fail(f"{counts} in a unit test: move it to tests/integration or tests/system (docs/testing.md)", pytrace=False)
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for file, cost in getattr(node, "workeroutput", {}).get("costs", {}).items():
            self._files[file] += Cost(**cost)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (output := getattr(self._config, "workeroutput", None)) is not None:
            output["costs"] = {file: asdict(cost) for file, cost in self._files.items()}
            return
        if (report := self._config.getoption("--costs")) is not None:
            Path(report).write_text(json.dumps(described(self._files, time.perf_counter() - self._began), indent=1) + "\n")
        found = _by_folder(self._files)
        if self._config.getoption("--write-budget"):
            BUDGET.write_text(json.dumps(budget(found), indent=1) + "\n")
        elif BUDGET.exists() and "not extended" in self._config.option.markexpr:
            self._exceeded = exceeded(found, json.loads(BUDGET.read_text()))
            if self._exceeded and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._files) < 2 and not self._exceeded:
            return
        write = terminalreporter.write_line
        terminalreporter.section("costs: seconds, and " + ", ".join(COUNTED))
        slowest = sorted(self._files.items(), key=lambda entry: -entry[1].seconds)[:SLOWEST]
        for name, cost in (*sorted(_by_folder(self._files).items()), *slowest):
            write(f"{cost.seconds:8.1f} " + " ".join(f"{getattr(cost, count):6}" for count in COUNTED) + f"  {name}")
        for line in self._exceeded:
            write(line, red=True)


def described(files: Mapping[str, Cost], seconds: float) -> dict[str, Any]:
    """A report for people: the machine, the whole run's time, and the costs of all workers together by folder and file."""
    tables = {"folders": _by_folder(files), "files": files}
    costs = {name: {key: asdict(cost) for key, cost in sorted(table.items())} for name, table in tables.items()}
    return {"date": time.strftime("%Y-%m-%d"), "cpu": _cpu(), "cores": os.cpu_count(), "seconds": round(seconds), **costs}


def _cpu() -> str:
    """The name of the CPU, as well as the operating system says it."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _by_folder(files: Mapping[str, Cost]) -> dict[str, Cost]:
    folders: defaultdict[str, Cost] = defaultdict(Cost)
    for file, cost in files.items():
        folders["/".join(file.split("/")[:3][: file.count("/")])] += cost
    return dict(folders)


def budget(found: Mapping[str, Cost]) -> dict[str, dict[str, int]]:
    """Limits for what a run has counted; counts of nothing are left out."""
    limits = {}
    for folder, cost in sorted(found.items()):
        counts = {name: getattr(cost, name) for name in COUNTED}
        for name, (factor, more) in _ROOM.items():
            counts[name] = math.ceil(factor * counts[name]) + more if counts[name] else 0
        limits[folder] = {name: count for name, count in counts.items() if count}
    return limits


def exceeded(found: Mapping[str, Cost], limits: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each count of a folder that is over its limit; what is not listed has a limit of nothing."""
    return [
        f"{folder}: {getattr(cost, name)} {name}, and tests/budget.json allows {limit}"
        for folder, cost in sorted(found.items())
        for name in COUNTED
        if getattr(cost, name) > (limit := limits.get(folder, {}).get(name, 0))
    ]
