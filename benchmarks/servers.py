"""`python -m jaxserve.serve` as a process, for benchmarks that ask a real server."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_STOP_SECONDS = 60.0


@contextmanager
def server(flags: Sequence[str]) -> Iterator[str]:
    """The base URL of a server that is ready, ended at the end. Raises RuntimeError with what it wrote if it does not start."""
    command = [sys.executable, "-m", "jaxserve.serve", *flags, "--port", "0", "--grpc-port", "0"]
    with tempfile.TemporaryFile() as errors:
        popen = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors)
        assert popen.stdout is not None
        try:
            words = popen.stdout.readline().decode().split()
            if len(words) != 3:
                popen.wait()
                errors.seek(0)
                raise RuntimeError(errors.read().decode())
            yield words[1]
        finally:
            popen.send_signal(signal.SIGTERM)
            try:
                popen.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()
            popen.stdout.close()
