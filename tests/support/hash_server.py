"""A whole server over a hash engine, as processes: `python -m tests.support.hash_server JSON`. Starts in a second or two."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from jaxserve.config.server import ServerConfig
from jaxserve.engine.remote.reports import EngineSpec
from jaxserve.errors import JaxserveError
from jaxserve.logs import set_up_logging
from server.processes.engines import own_engine
from server.processes.supervisor import Announcer, Supervisor
from tests.support.hash_engine import BUILDER
from tests.support.serve_process import ROOT, Process
from tests.support.tiny_checkpoint import write_tiny_checkpoint

ENGINE, TOKENIZER = "jaxserve.engine.remote.child", "jaxserve.tokenizer.worker"
FRONT_END, BATCHES = "server.processes.frontend", "server.processes.batches"
PATIENCE = 60.0


def main(arguments: str) -> int:
    """The supervisor's process."""
    given = json.loads(arguments)
    config = ServerConfig(**{"port": 0, "grpc_port": 0, "log_level": "warning", **given["server"]})
    spec = EngineSpec(address="", argument=given["engine"], builder=BUILDER, log_level="warning")

    async def run() -> None:
        announcer = Announcer(
            progress=lambda *_: None,
            banner=lambda text: print(text, file=sys.stderr, flush=True),
            ready=lambda addresses: print(f"ready: {addresses.http} {addresses.grpc}", flush=True),
        )
        await Supervisor(own_engine(spec, config), config, announcer).run()

    set_up_logging("warning")
    try:
        asyncio.run(run())
    except JaxserveError as error:
        print(f"jaxserve: {error.message}", file=sys.stderr)
        return 2
    return 0


@dataclass
class HashServer(Process):
    """A running server and its children."""

    def pids(self, module: str) -> list[int]:
        """Children that run a module."""
        found = []
        for child in psutil.Process(self.popen.pid).children(recursive=True):
            try:
                if f"run_module('{module}'" in " ".join(child.cmdline()):
                    found.append(child.pid)
            except psutil.Error:  # it ended in the meantime
                continue
        return found

    def family(self) -> list[psutil.Process]:
        """Every process of the server."""
        own = psutil.Process(self.popen.pid)
        return [own, *own.children(recursive=True)]

    def ports(self) -> list[int]:
        return [int(address.rpartition(":")[2]) for address in (self.http, self.grpc)]

    def metrics(self) -> dict[str, float]:
        """Values by name, summed over labels; 0 for what never happened."""
        values: dict[str, float] = defaultdict(float)
        for line in httpx.get(f"{self.http}/metrics", timeout=PATIENCE).text.splitlines():
            if line and not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                name = series.partition("{")[0].removeprefix("jaxserve:")
                values[name] += float(value)
        return values

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.http}/ready", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def until_ready(self) -> None:
        until(self.is_ready)

    def until_idle(self) -> dict[str, float]:
        """Nothing runs, every page is free, and every request was counted once; across all processes. Returns those metrics."""
        values: dict[str, float] = {}

        def idle() -> bool:
            nonlocal values
            values = self.metrics()  # which a server renders once a second
            ended = values["requests_finished_total"] + values["requests_aborted_total"] + values["requests_rejected_total"]
            busy = values["num_requests_running"] or values["num_requests_waiting"] or values["kv_cache_usage_perc"]
            return not busy and values["requests_received_total"] == ended

        until(idle)
        return values


def until(condition: Any) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)


def nothing_left(family: list[psutil.Process], ports: list[int]) -> None:
    """No process and no port is left of a server."""
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    for port in ports:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))
            free.listen()


@contextmanager
def starting_hash_server(folder: Path, server: dict[str, Any] | None = None, **engine: Any) -> Iterator[HashServer]:
    """A server that is being started; whatever is left of it at the end is killed."""
    checkpoint = write_tiny_checkpoint(folder / "tiny")
    arguments = json.dumps({"server": server or {}, "engine": {"tokenizer": str(checkpoint), **engine}})
    out, err = folder / "out", folder / "err"
    command = [sys.executable, "-m", "tests.support.hash_server", arguments]
    with out.open("wb") as stdout, err.open("wb") as stderr:
        popen = subprocess.Popen(command, cwd=ROOT, stdout=stdout, stderr=stderr)
    running = HashServer(popen, out, err)
    try:
        yield running
    finally:
        if popen.poll() is None:
            for process in running.family():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        popen.wait()


@contextmanager
def hash_server(folder: Path, server: dict[str, Any] | None = None, **engine: Any) -> Iterator[HashServer]:
    """A server that is ready."""
    with starting_hash_server(folder, server, **engine) as running:
        running.wait_until_ready()
        yield running


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
