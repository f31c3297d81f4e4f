"""`python -m jaxserve.serve` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.support.xla_flags import xla_flags

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 900  # for what hangs: machines may be slow
FREE_PORTS = ("--port", "0", "--grpc-port", "0")
QUICKLY = ("--before-ready", "fewest")


def command(*arguments: str, module: str = "jaxserve.serve") -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def environment(devices: int = 1) -> dict[str, str]:
    """The tests' own, but for the number of virtual devices: programs are compiled as quickly as theirs."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(devices)}


@dataclass
class Process:
    """A running server, and the two things it writes.

    Attributes:
        others: further addresses of HTTP, where it has several.
    """

    popen: subprocess.Popen[bytes]
    out: Path
    err: Path
    http: str = ""
    grpc: str = ""
    others: tuple[str, ...] = ()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self.out.read_text().endswith("\n"):
            assert self.popen.poll() is None, self.err.read_text()
            assert time.monotonic() < deadline, self.err.read_text()
            time.sleep(0.05)
        word, self.http, address, *more = self.out.read_text().split()
        assert word == "ready:"
        self.others = tuple(more[::2])
        self.grpc = address.removeprefix("grpc://")

    def stop(self, seconds: float = 30) -> int:
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(seconds)


def start(
    folder: Path,
    *arguments: str,
    devices: int = 1,
    module: str = "jaxserve.serve",
    variables: Mapping[str, str] | None = None,
) -> Process:
    """Start a server and wait until it is ready; what it writes goes to files in the folder.

    It compiles the fewest step shapes, unless the arguments say otherwise.
    """
    if module == "jaxserve.serve" and QUICKLY[0] not in arguments:
        arguments = (*arguments, *QUICKLY)
    out, err = folder / "out", folder / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        line = command(*arguments, module=module)
        popen = subprocess.Popen(line, cwd=ROOT, env={**environment(devices), **(variables or {})}, stdout=stdout, stderr=stderr)
    process = Process(popen, out, err)
    try:
        process.wait_until_ready()
    except BaseException:
        popen.kill()
        popen.wait()
        raise
    return process


class Served(Protocol):
    """A server on free ports with these flags, gone at the end; tests have it as the fixture `served`."""

    def __call__(self, folder: Path, *arguments: str, devices: int = 1) -> Iterator[Process]: ...


def one_server(folder: Path, *arguments: str, devices: int = 1) -> Iterator[Process]:
    """One process tree, killed at the end."""
    process = start(folder, *arguments, *FREE_PORTS, devices=devices)
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.wait()
