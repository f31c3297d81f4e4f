"""lm-eval over an engine in its own process against lm-eval's own `hf` model, on the bundled model and jaxserve's own tasks.

    python -m benchmarks.evaluation --peer-python PYTHON [--rounds 3]

PYTHON is an interpreter that has lm-eval, torch and transformers. Both compute in float32 on the same cores, one after the other
in turns; what is timed is the evaluation with the model loaded, prompts that were asked before forgotten. Writes
benchmarks/results/evaluation.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.lm_eval_runs import run
from jaxserve.evaluation.model import JaxserveLM
from jaxserve.llm import LLM

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "evaluation.json"
CHECKPOINT = ROOT / "jaxserve" / "assets" / "pico"
DTYPE = "float32"
JOBS: dict[str, dict[str, Any]] = {
    "multiple choice": {"tasks": ["pico_choices"], "limit": 10, "shots": 0},
    "multiple choice, 4 examples in each prompt": {"tasks": ["pico_choices"], "limit": 10, "shots": 4},
    "answers": {"tasks": ["pico_answers"], "limit": 5, "shots": 0},
    "perplexity": {"tasks": ["pico_text"], "limit": 3, "shots": 0},
}
BATCH_SIZES = (1, 16)  # of the peer: its default, and one that suits the tasks


class Peer:
    """lm-eval's `hf` model in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.ready = self._read()

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Do a job there."""
        assert self._process.stdin is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def peer(python: str) -> Iterator[Peer]:
    """The peer, ready."""
    command = [python, "-m", "benchmarks.peer_lm_eval", str(CHECKPOINT), DTYPE, str(len(os.sched_getaffinity(0)))]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Peer(process)
        finally:
            process.terminate()


class Ours:
    """JaxserveLM in this process."""

    def __init__(self) -> None:
        start = time.perf_counter()
        self._llm = LLM(str(CHECKPOINT), dtype=DTYPE)
        self._model = JaxserveLM(self._llm)
        self.load_seconds = time.perf_counter() - start

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Do a job with nothing in the prefix cache."""
        self._llm.reset_prefix_cache()
        before = self._model.usage
        known = (before.prompt_tokens, before.cached_tokens, before.output_tokens)
        done = run(self._model, job)
        names = ("prompt_tokens", "cached_tokens", "output_tokens")
        return done | {name: getattr(self._model.usage, name) - count for name, count in zip(names, known, strict=True)}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The runs of one job: all times and the median; scores of the last, as they are the same in all."""
    assert all(run["scores"] == runs[0]["scores"] for run in runs), "a run that is repeated has the same scores"
    times = {name: [round(run[name], 3) for run in runs] for name in ("seconds", "cpu_seconds")}
    return {**runs[-1], **times, "median_seconds": statistics.median(times["seconds"])}


def main() -> None:
    """Run every job in turns, and write what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"machine": machine.describe(), "dtype": DTYPE, "rounds": arguments.rounds, "jobs": {}}
    ours = Ours()
    with peer(arguments.peer_python) as theirs:
        report |= {"load_seconds": ours.load_seconds, "peer": theirs.ready, "load_average": os.getloadavg()}
        for name, job in JOBS.items():
            ours.run(job)  # both did every job once before it is timed
            theirs.run(job | {"batch_size": BATCH_SIZES[-1]})
            runs: dict[str, list[dict[str, Any]]] = {}
            for _ in range(arguments.rounds):
                runs.setdefault("jaxserve", []).append(ours.run(job))
                for size in BATCH_SIZES:
                    runs.setdefault(f"hf, batch size {size}", []).append(theirs.run(job | {"batch_size": size}))
            entry = {side: summary(done) for side, done in runs.items()}
            mine = entry["jaxserve"]["median_seconds"]
            ratios = {side: round(one["median_seconds"] / mine, 2) for side, one in entry.items() if side != "jaxserve"}
            report["jobs"][name] = {"job": job, "times_faster_than": ratios, "runs": entry}
            print(name, ratios, flush=True)
        report["load_average_after"] = os.getloadavg()
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
