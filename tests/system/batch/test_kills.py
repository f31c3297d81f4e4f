"""Jobs whose process is killed with -9 at random moments, or finds no space: what is resumed equals an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support.serve_process import ROOT
from tests.support.tiny_checkpoint import write_tiny_checkpoint

COUNT, KILLS = 2000, 5
PATIENCE = 60.0


@dataclass
class Driver:
    """Runs jobs in processes of their own."""

    popen: subprocess.Popen[str]
    tokenizer: str
    source: Path

    def begin(self, output: Path, **options: Any) -> int:
        """Start a job. Returns its process."""
        stdin: IO[str] | None = self.popen.stdin
        assert stdin is not None
        given = {"input": str(self.source), "output": str(output), "tokenizer": self.tokenizer, **options}
        stdin.write(json.dumps(given) + "\n")
        stdin.flush()
        return int(self._said())

    def end(self) -> dict[str, Any] | None:
        """Wait for the job. Returns its summary or error; None if it was killed."""
        said = self._said()
        if said == "ended":
            return None
        assert self._said() == "ended"
        summary: dict[str, Any] = json.loads(said)
        return summary

    def _said(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("kills")
    source = folder / "in.jsonl"
    source.write_bytes(b"".join(line(number) + b"\n" for number in range(COUNT)))
    command = [sys.executable, "-m", "tests.system.batch.driver"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as popen:
        try:
            yield Driver(popen, str(write_tiny_checkpoint(folder / "tiny")), source)
        finally:
            popen.kill()


@pytest.fixture(scope="module")
def undisturbed(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("undisturbed") / "out.jsonl"
    driver.begin(output)
    summary = driver.end()
    assert summary is not None
    assert summary["complete"], summary
    return results(output)


def line(number: int) -> bytes:
    """Mostly requests; some with several sequences, some that are no requests or get an error."""
    if number % 101 == 50:
        return b'{"custom_id": '
    body: dict[str, Any] = {"model": "hash", "prompt": f"{'common ' * (number % 3)}{number}", "max_tokens": 3, "temperature": 0}
    if number % 97 == 13:
        body["n"] = 2
    if number % 103 == 7:
        body["prompt"] = "long " * 100
    return json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body}).encode()


def results(output: Path) -> dict[str, Any]:
    """What was answered to each custom_id, or to each line without one; every one of them once."""
    found: dict[str, Any] = {}
    for path in (output, output.with_name("out.errors.jsonl")):
        for text in path.read_bytes().splitlines():
            entry = json.loads(text)
            name = entry["custom_id"] or f"line {entry['line']}"
            assert name not in found
            response = entry["response"] or {"body": {}}
            found[name] = (
                response.get("status_code"),
                response["body"].get("choices"),
                response["body"].get("error"),
                entry["error"],
            )
    return found


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def kill_at(driver: Driver, output: Path, length: int, delay: float) -> bool:
    """Run a job and kill it a moment after its output has so many bytes. False if it ended before."""
    child = driver.begin(output)
    deadline = time.monotonic() + PATIENCE
    while size(output) < length:
        assert time.monotonic() < deadline, f"the output has {size(output)} bytes"
        time.sleep(0.002)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    return driver.end() is None


def test_every_request_once_after_five_kills(driver: Driver, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    """Five that hit: equal to an undisturbed run."""
    assert len(undisturbed) == COUNT
    output, whole, dice = tmp_path / "out.jsonl", 330 * COUNT, random.Random(6)
    kills, at = 0, 0
    for share in (0.0, 0.15, 0.35, 0.55, 0.75):
        at = int(whole * (share + dice.uniform(0.0, 0.1)) / 2) if share else 0
        kills += kill_at(driver, output, at, dice.uniform(0.0, 0.05))
    driver.begin(output)
    summary = driver.end()
    assert kills == KILLS
    assert summary is not None
    assert summary["complete"]
    assert results(output) == undisturbed
    counts = summary["all_runs"]
    assert counts["answered"] + counts["failed"] + counts["invalid"] == COUNT


def test_no_space_left_stops_the_job_and_it_goes_on(driver: Driver, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    driver.begin(output, file_bytes=200_000)
    said = driver.end()
    assert said is not None
    assert "cannot write the job's files: File too large" in said["error"]
    assert 0 < size(output) < 200_000
    for text in output.read_bytes().splitlines():  # nothing torn is left behind
        json.loads(text)
    driver.begin(output)
    assert driver.end() is not None
    assert results(output) == undisturbed
