"""A job of `jaxserve.batch` by two engines on Ray, killed with -9 in the middle and resumed, against the same job by one engine.

    python -m benchmarks.batch_ray [--requests 600]

Needs the extra "ray". Greedy answers of the bundled model must be the same, and every custom_id must be there once. Writes
benchmarks/results/batch_ray.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import machine
from benchmarks.servers import ROOT

RESULTS = Path(__file__).parent / "results" / "batch_ray.json"
ENGINES = 2
_KILLED_AT = 0.3  # of the lines


def write_input(path: Path, count: int) -> None:
    """Questions that the bundled model was made for."""
    random = Random(0)
    with path.open("w") as file:
        for number in range(count):
            question = f"What is {random.randint(10, 99)} + {random.randint(10, 99)}?"
            body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24}
            line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")


def command(folder: Path, name: str, *flags: str) -> list[str]:
    """A job of the folder's input."""
    files = (
        "-i",
        str(folder / "in.jsonl"),
        "-o",
        str(folder / f"{name}.jsonl"),
        "--summary-json",
        str(folder / f"{name}.summary"),
    )
    return [sys.executable, "-m", "jaxserve.batch", "pico", *files, *flags]


def answers(path: Path) -> dict[str, str]:
    """What was said, by custom_id. Raises AssertionError if one is there twice."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert set(Counter(line["custom_id"] for line in lines).values()) <= {1}
    return {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in lines}


def kill_in_the_middle(folder: Path, count: int) -> int:
    """Begin the job and kill it; returns how many lines it had written."""
    output = folder / "ray.jsonl"
    with subprocess.Popen(command(folder, "ray", "--engines", str(ENGINES)), cwd=ROOT, stderr=subprocess.DEVNULL) as popen:
        while not output.exists() or output.read_bytes().count(b"\n") < _KILLED_AT * count:
            assert popen.poll() is None, "it ended too early"
            time.sleep(0.02)
        popen.kill()
    return output.read_bytes().count(b"\n")


def summary(folder: Path, name: str) -> dict[str, Any]:
    """What a job said of itself."""
    figures: dict[str, Any] = json.loads((folder / f"{name}.summary").read_text())
    kept = ("answered", "failed", "invalid", "prompt_tokens", "completion_tokens", "answering_seconds", "wall_seconds")
    return {"runs": figures["runs"], **{key: figures["all_runs"][key] for key in kept}}


def main() -> None:
    """Run, compare and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=600)
    count = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_input(folder / "in.jsonl", count)
        subprocess.run(command(folder, "one"), cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        killed_at = kill_in_the_middle(folder, count)
        again = command(folder, "ray", "--engines", str(ENGINES))
        subprocess.run(again, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        one, several = answers(folder / "one.jsonl"), answers(folder / "ray.jsonl")
        report = {**machine.describe(), "command": " ".join(["python -m benchmarks.batch_ray", *sys.argv[1:]])}
        report["versions"]["ray"] = version("ray")
        report |= {
            "requests": count,
            "engines": ENGINES,
            "lines_written_when_killed": killed_at,
            "answers": len(several),
            "same_answers_as_one_engine": sum(one[key] == text for key, text in several.items()),
            "one_engine": summary(folder, "one"),
            "on_ray": summary(folder, "ray"),
        }
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
