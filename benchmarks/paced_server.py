"""A whole server over a paced engine, as processes: `python -m benchmarks.paced_server JSON`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.paced_engine import BUILDER, write_tokenizer
from jaxserve.config.server import ServerConfig
from jaxserve.engine.remote.reports import EngineSpec
from jaxserve.logs import set_up_logging
from server.processes.engines import own_engine
from server.processes.supervisor import Announcer, Supervisor

ROOT = Path(__file__).resolve().parents[1]
_MODULES = {"engine": "jaxserve.engine.remote.child", "front_end": "server.processes.frontend"}
_START_SECONDS, _STOP_SECONDS = 60.0, 30.0


@dataclass(frozen=True, slots=True)
class PacedServer:
    """A server that is ready.

    Attributes:
        http: base URL.
        grpc: host and port.
        processes: process ids by name: engine, front_end_0, front_end_1, ...
    """

    http: str
    grpc: str
    processes: dict[str, int]


def main(arguments: str) -> None:
    """The supervisor's process, until SIGTERM."""
    given = json.loads(arguments)
    # Access lines are written and thrown away by the benchmark: they are a cost of every request in production too.
    config = ServerConfig(port=0, grpc_port=0, log_level="info", drain_timeout=1.0, frontends=given["front_ends"])
    spec = EngineSpec(address="", argument=given["engine"], builder=BUILDER, log_level="warning")
    announcer = Announcer(
        progress=lambda *_: None,
        banner=lambda _: None,
        ready=lambda addresses: print(f"ready: {addresses.http} {addresses.grpc}", flush=True),
    )
    set_up_logging("warning")

    async def run() -> None:
        await Supervisor(own_engine(spec, config), config, announcer).run()

    asyncio.run(run())


@contextmanager
def paced_server(*, front_ends: int, rows: int, step_seconds: float) -> Iterator[PacedServer]:
    """A server that is ready, ended at the end. Raises RuntimeError with what it wrote if it does not start."""
    with tempfile.TemporaryDirectory(prefix="jaxserve-benchmark-") as name:
        folder = Path(name)
        tokenizer = str(write_tokenizer(folder))
        engine = {"rows": rows, "step_seconds": step_seconds, "tokenizer": tokenizer}
        command = [sys.executable, "-m", "benchmarks.paced_server", json.dumps({"front_ends": front_ends, "engine": engine})]
        errors = folder / "errors"
        with errors.open("wb") as stderr, subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr) as popen:
            try:
                assert popen.stdout is not None
                line = popen.stdout.readline().decode().split()
                if len(line) != 3:
                    raise RuntimeError(errors.read_text())
                yield PacedServer(line[1], line[2].removeprefix("grpc://"), _children(popen.pid, front_ends))
            finally:
                _end(popen)


def _end(popen: subprocess.Popen[bytes]) -> None:
    family = psutil.Process(popen.pid).children(recursive=True) if popen.poll() is None else []
    popen.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        popen.wait(_STOP_SECONDS)
    for process in (*family, popen):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _children(supervisor: int, front_ends: int) -> dict[str, int]:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        found: dict[str, int] = {}
        for child in psutil.Process(supervisor).children(recursive=True):
            command = " ".join(child.cmdline())
            if f"'{_MODULES['engine']}'" in command:
                found["engine"] = child.pid
            elif f"'{_MODULES['front_end']}'" in command:
                found[f"front_end_{len(found) - ('engine' in found)}"] = child.pid
        if len(found) == front_ends + 1:
            return found
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server has the processes {found}")
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1])
