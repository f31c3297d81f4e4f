"""`python -m jaxserve.serve` and `jaxserve.fleet` as processes, for benchmarks that ask a real server."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

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
    with _running("jaxserve.serve", [*flags, "--port", "0", "--grpc-port", "0"], checkout) as one:
        yield one


@contextmanager
def _running(
    module: str, arguments: Sequence[str], checkout: Path, variables: Mapping[str, str] | None = None
) -> Iterator[Started]:
    command = [sys.executable, "-m", module, *arguments]
    with tempfile.TemporaryFile() as errors:
        path = os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PYTHONPATH": path, **(variables or {})}
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
        yield _serving(one)


@contextmanager
def fleet(settings: Mapping[str, Any], replicas: int, routing: Mapping[str, Any] | None = None) -> Iterator[Started]:
    """A fleet of so many replicas that is ready, on a Ray cluster of its own, ended at the end; `settings` are a server's.

    Raises RuntimeError with what it wrote if it does not start.
    """
    pools = {"default": {"replicas": replicas, "cpus": 0.1}}
    described = {**settings, "port": 0, "grpc-port": 0, "pools": pools, "routing": dict(routing or {})}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(described, file)
        file.flush()
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # so that no other cluster lets it in
        with _running("jaxserve.fleet", [file.name], ROOT, own) as one:
            yield _serving(one)


def _serving(one: Started) -> Started:
    if len(one.words) != 3:
        one.popen.wait()
        raise RuntimeError(one.said())
    return one


@contextmanager
def server(flags: Sequence[str]) -> Iterator[str]:
    """The base URL of a server that is ready; see `ready`."""
    with ready(flags) as one:
        yield one.http
