"""The command as a process, over the bundled model: killed with -9, it goes on; a bad line costs it nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.serve_process import ROOT, START_SECONDS, environment
from tests.system.interop.conftest import SMALL

QUESTIONS = [f"What is {number} + {number + 3}?" for number in range(11, 17)]
COUNT = 60


def write(path: Path) -> None:
    lines = []
    for number in range(COUNT):
        question = QUESTIONS[number % len(QUESTIONS)]
        body = {"model": "pico", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 12}
        lines.append(json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}))
    lines.insert(2, "{wrong")
    path.write_text("\n".join(lines) + "\n")


def begin(folder: Path) -> subprocess.Popen[str]:
    files = ("-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"), "--summary-json", str(folder / "summary.json"))
    command = [sys.executable, "-m", "jaxserve.batch", "pico", *SMALL, *files, "--commit-seconds", "0.02", "--cost-per-hour", "2"]
    return subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def replies(folder: Path) -> list[dict[str, Any]]:
    path = folder / "out.jsonl"
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


def test_a_killed_job_goes_on_and_ends(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl")
    first = begin(tmp_path)
    deadline = time.monotonic() + START_SECONDS
    seen: set[int] = set()
    while len(seen) < 2:  # results are appended before they are recorded: the first ones are when more are there
        seen |= {len(replies(tmp_path))} - {0}
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline, "nothing was answered"
        time.sleep(0.005)
    first.kill()
    first.communicate()
    assert first.returncode == -signal.SIGKILL

    second = begin(tmp_path)
    said, told = second.communicate(timeout=START_SECONDS)
    assert second.returncode == 1, told  # a line is in the error file
    answers: dict[str, set[str]] = {}
    names = []
    for reply in replies(tmp_path):
        names.append(reply["custom_id"])
        question = QUESTIONS[int(reply["custom_id"][1:]) % len(QUESTIONS)]
        answers.setdefault(question, set()).add(reply["response"]["body"]["choices"][0]["message"]["content"])
    assert sorted(names) == sorted(f"r{number}" for number in range(COUNT))
    assert {len(texts) for texts in answers.values()} == {1}  # whichever run answered
    (error,) = [json.loads(line) for line in (tmp_path / "out.errors.jsonl").read_text().splitlines()]
    assert (error["line"], error["error"]["code"]) == (3, "invalid_json")

    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["complete"], summary["runs"], summary["lines"]) == (True, 2, COUNT + 1)
    assert summary["all_runs"]["answered"] == COUNT
    assert 0 < summary["this_run"]["answered"] <= COUNT
    assert summary["all_runs"]["completion_tokens"] > COUNT
    assert f"{COUNT} answered, 0 failed, 1 invalid" in said
    assert "complete" in said
    assert "at $2/hour" in said
    assert "requests: 61/61" in told
