"""`python -m jaxserve.serve` as a process, for benchmarks that ask a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
_STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Started:
    """A server that was started.

    Attributes:
        popen: its process.
        words: of the first line that it printed: "ready:" and its addresses; none if it ended before that.
        errors: what it wrote to standard error.
    """

    popen: subprocess.Popen[bytes]
    words: list[str]
    errors: IO[bytes]

    @property
    def http(self) -> str:
        """Base URL, once it is ready."""
        return self.words[1]

    @property
    def grpc(self) -> str:
        """Host and port, once it is ready."""
        return self.words[2].removeprefix("grpc://")

    def said(self) -> str:
        """All of `errors` so far."""
        self.errors.seek(0)
        return self.errors.read().decode()


@contextmanager
def started(flags: Sequence[str], checkout: Path = ROOT) -> Iterator[Started]:
    """Start a server, of this checkout or another, and wait for its first line; end it at the end."""
    command = [sys.executable, "-m", "jaxserve.serve", *flags, "--port", "0", "--grpc-port", "0"]
    with tempfile.TemporaryFile() as errors:
        env = {**os.environ, "PYTHONPATH": str(checkout)}
        popen = subprocess.Popen(command, cwd=checkout, env=env, stdout=subprocess.PIPE, stderr=errors)
        assert popen.stdout is not None
        try:
            yield Started(popen, popen.stdout.readline().decode().split(), errors)
        finally:
            popen.send_signal(signal.SIGTERM)
            try:
                popen.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()
            popen.stdout.close()


@contextmanager
def ready(flags: Sequence[str]) -> Iterator[Started]:
    """A server that is ready, ended at the end. Raises RuntimeError with what it wrote if it does not start."""
    with started(flags) as one:
        if len(one.words) != 3:
            one.popen.wait()
            raise RuntimeError(one.said())
        yield one


@contextmanager
def server(flags: Sequence[str]) -> Iterator[str]:
    """The base URL of a server that is ready; see `ready`."""
    with ready(flags) as one:
        yield one.http
