"""`jaxserve.batch` beside the same requests through a server, and beside HF transformers' batched generate, in turns.

    python -m benchmarks.batch --transformers-python PATH [--requests 96] [--repeats 2]

PATH is an interpreter with torch and transformers (extra "parity"); without one only jaxserve is measured. The server has the
flags that `jaxserve.batch` chooses, and is asked as clients do, and for its batch class; all sides take turns. Seconds are those
of answering: neither loading nor compiling nor reading the requests counts. Output tokens are those that were asked for. Writes
benchmarks/results/batch.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.batch_requests import Request, Workload, requests, write_checkpoint, write_lines
from benchmarks.peer import Peer
from benchmarks.servers import ROOT, server

RESULTS = Path(__file__).parent / "results" / "batch.json"
MODEL_FLAGS = ("--load-format", "dummy", "--max-model-len", "1024")
Way = tuple[int, str]  # clients, service class


class Batch:
    """`python -m jaxserve.batch`, a process a run."""

    def __init__(self, model: Path, lines: Path) -> None:
        self._model = model
        self._lines = lines

    def seconds(self) -> float:
        """From the first request asked to the last one answered."""
        with tempfile.TemporaryDirectory() as folder:
            summary = Path(folder) / "summary.json"
            flags = ("-i", str(self._lines), "-o", f"{folder}/out.jsonl", "--summary-json", str(summary), *MODEL_FLAGS)
            command = [sys.executable, "-m", "jaxserve.batch", str(self._model), *flags]
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            return float(json.loads(summary.read_text())["this_run"]["answering_seconds"])


class Served:
    """A server with the flags that `jaxserve.batch` chooses, and clients in a process of their own."""

    def __init__(self, url: str, lines: Path) -> None:
        self._url = url
        self._lines = lines

    def seconds(self, way: Way) -> float:
        """From the first request sent to the last one answered; nothing is left of earlier runs in the prefix cache."""
        httpx.post(f"{self._url}/reset_prefix_cache").raise_for_status()
        command = [sys.executable, "-m", "benchmarks.batch_clients", self._url, str(self._lines), str(way[0]), way[1]]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
        return float(json.loads(done.stdout)["seconds"])


class Transformers:
    """HF transformers' generate, in a process of its own."""

    def __init__(self, python: str, model: Path, threads: int, wanted: Sequence[Request]) -> None:
        self._peer = Peer(python, "peer_batches.py", str(model), "bfloat16", str(threads))
        self._job = {"prompts": [one.prompt for one in wanted], "outputs": [one.output for one in wanted]}
        self.versions: dict[str, str] = self._peer.hello

    def seconds(self, rows: int) -> float:
        """From the first batch to the last."""
        return float(self._peer.ask({**self._job, "rows": rows})["seconds"])

    def close(self) -> None:
        """End the process."""
        self._peer.close()


def measure(
    given: argparse.Namespace, model: Path, lines: Path, wanted: Sequence[Request], report: dict[str, Any]
) -> dict[str, Any]:
    """Seconds of every run, in turns."""
    numbers = {"interactive_paid": given.clients, "batch": given.batch_clients}
    ways: list[Way] = [(clients, name) for name in numbers for clients in numbers[name]]
    with ExitStack() as opened:
        batch = Batch(model, lines)
        batch.seconds()  # its programs are compiled now, and the server's with them
        step = ("--max-num-seqs", str(given.rows), "--max-num-batched-tokens", str(given.tokens), "--log-level", "warning")
        served = Served(opened.enter_context(server([str(model), *MODEL_FLAGS, *step])), lines)
        sides: dict[str, Callable[[], float]] = {"jaxserve.batch": batch.seconds}
        for clients, name in ways:
            sides[f"server, {clients} clients, {name}"] = partial(served.seconds, (clients, name))
        if given.transformers_python:
            peer = Transformers(given.transformers_python, model, report["cores"], wanted)
            opened.callback(peer.close)
            report["versions"] |= peer.versions
            for rows in given.transformers_rows:
                sides[f"transformers, {rows} rows"] = partial(peer.seconds, rows)
        runs: dict[str, list[float]] = {name: [] for name in sides}
        loads = []
        for _ in range(given.repeats):
            for name, side in sides.items():
                loads.append(round(os.getloadavg()[0], 2))
                runs[name].append(side())
                print(name, runs[name][-1], flush=True)
    return {"load_average_before": loads, "seconds": runs}


def rates(found: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Output tokens a second, and how many times those of each other one `jaxserve.batch` has, run by run."""
    seconds = found["seconds"]
    ours, *others = seconds
    ratios = {name: [other / own for own, other in zip(seconds[ours], seconds[name], strict=True)] for name in others}
    return {
        "output_tokens_per_s": {name: machine.median([tokens / value for value in values]) for name, values in seconds.items()},
        "batch_is_faster_by": {
            name: {"median": machine.median(values), "min": min(values), "max": max(values)} for name, values in ratios.items()
        },
    }


def table(report: dict[str, Any]) -> Table:
    """The end of it."""
    shown = Table(title=f"{report['model']}: {report['workload']}", title_justify="left")
    for column in ("", "output tokens/s", "jaxserve.batch is faster by", "from", "to"):
        shown.add_column(column, justify="right")
    for name, rate in report["output_tokens_per_s"].items():
        ratio = report["batch_is_faster_by"].get(name)
        cells = [f"{ratio[key]:.2f}x" for key in ("median", "min", "max")] if ratio else ["", "", ""]
        shown.add_row(name, f"{rate:.0f}", *cells)
    return shown


def _of_no_machine(argument: str) -> str:
    """An argument as it is written down: a path of this machine tells others nothing."""
    return Path(argument).name if argument.startswith("/") else argument


def main() -> None:
    """Run and write the results."""
    given = _arguments()
    workload = Workload(
        requests=given.requests,
        prompt_tokens=64,
        output_tokens=48,
        prompt_sigma=0.8,
        output_sigma=given.output_sigma,
        longest_prompt=512,
        longest_output=192,
    )
    wanted = list(requests(workload))
    tokens = sum(one.output for one in wanted)
    report: dict[str, Any] = {
        **machine.describe(),
        "command": " ".join(["python -m benchmarks.batch", *map(_of_no_machine, sys.argv[1:])]),
    }
    report |= {
        "model": "Llama 150M, dummy weights, bfloat16",
        "workload": f"{given.requests} completions, {sum(len(one.prompt) for one in wanted)} tokens in, {tokens} out",
    }
    with tempfile.TemporaryDirectory() as scratch:
        model = write_checkpoint(Path(scratch) / "llama150m")
        lines = write_lines(Path(scratch) / "requests.jsonl", wanted, model.name)
        found = measure(given, model, lines, wanted, report)
    report |= found | rates(found, tokens)
    given.results.write_text(json.dumps(report, indent=1) + "\n")
    Console(width=120).print(table(report))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transformers-python", help="interpreter that has torch and transformers")
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--output-sigma", type=float, default=0.6)
    parser.add_argument("--rows", type=int, default=64, help="the server's --max-num-seqs: that of jaxserve.batch")
    parser.add_argument("--tokens", type=int, default=512, help="the server's --max-num-batched-tokens: that of jaxserve.batch")
    parser.add_argument("--clients", type=int, nargs="+", default=[40], help="that ask as clients do")
    parser.add_argument("--batch-clients", type=int, nargs="+", default=[80], help="that ask for the batch class")
    parser.add_argument("--transformers-rows", type=int, nargs="+", default=[32])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
