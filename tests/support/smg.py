"""The gateway smg as a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Smg:
    """A gateway that was started, which may not answer yet.

    Attributes:
        base: its URL.
    """

    base: str
    popen: subprocess.Popen[bytes]
    log: Path


@contextmanager
def smg(folder: Path, *arguments: str) -> Iterator[Smg]:
    """One on free ports with these flags, killed at the end."""
    log, port, metrics_port = folder / "log", free_port(), free_port()
    listen = ("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port), "--log-level", "warn")
    command = [sys.executable, "-m", "smg", "launch", *listen, *arguments]
    with log.open("wb") as out:
        popen = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        yield Smg(f"http://127.0.0.1:{port}", popen, log)
    finally:
        popen.kill()
        popen.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
