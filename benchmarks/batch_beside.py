"""What interactive clients notice of a batch on the same server: time to the first token and between tokens, with and without.

    python -m benchmarks.batch_beside [--model pico] [--rate 4] [--requests 120] [--repeats 3] [--server-flags ...]

One server with a state directory. In turns, the same interactive requests arrive at the same times (`jaxserve.bench serving`)
with nothing else there, and while a batch of /v1/batches is worked off that is larger than the time allows. A batch that stood
still would disturb nobody, so what it got done is told too. Writes benchmarks/results/batch_beside.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.batch_requests import write_checkpoint
from benchmarks.servers import ROOT, server

RESULTS = Path(__file__).parent / "results" / "batch_beside.json"
_PATIENCE_SECONDS = 120.0
_BATCH_LINES = 20_000
_WORDS = "What is 17 plus 25, and which of the numbers from one to ten are prime? "
_ENDED = ("completed", "cancelled", "failed", "expired")


def batch_file(model: str) -> bytes:
    """Requests of all lengths, more than can be answered meanwhile."""
    lines = []
    for number in range(_BATCH_LINES):
        body = {"model": model, "prompt": f"{number} " + _WORDS * (1 + number % 4), "max_tokens": 64, "ignore_eos": True}
        lines.append({"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body})
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@contextmanager
def running_batch(http: httpx.Client, file_id: str) -> Iterator[dict[str, float]]:
    """A batch that is under way, cancelled at the end; then the figures tell how much of it was done, and in how long."""
    asked = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = http.post("/v1/batches", json=asked).raise_for_status().json()
    figures: dict[str, float] = {}
    first = _until(http, batch["id"], lambda found: found["request_counts"]["completed"] > 0)
    start = time.perf_counter()
    try:
        yield figures
    finally:
        figures["seconds"] = time.perf_counter() - start
        done = http.get(f"/v1/batches/{batch['id']}").raise_for_status().json()
        figures["requests"] = done["request_counts"]["completed"] - first["request_counts"]["completed"]
        http.post(f"/v1/batches/{batch['id']}/cancel").raise_for_status()
        _until(http, batch["id"], lambda found: found["status"] in _ENDED)


def _until(http: httpx.Client, batch_id: str, reached: Any) -> dict[str, Any]:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        found: dict[str, Any] = http.get(f"/v1/batches/{batch_id}").raise_for_status().json()
        if reached(found):
            return found
        if time.monotonic() > deadline or found["status"] == "failed":
            raise RuntimeError(f"the batch did not get there: {found}")
        time.sleep(0.2)


def load(url: str, given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """What interactive clients saw. Raises CalledProcessError if a request failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        flags = ["--base-url", url, "--requests", str(given.requests), "--rate", str(given.rate), "--seed", str(seed)]
        shape = ["--prompt-tokens", "64", "--prompt-sigma", "0.5", "--output-tokens", "48", "--output-sigma", "0.4"]
        command = [sys.executable, "-m", "jaxserve.bench", "serving", *flags, *shape, "--json", str(path)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        report = json.loads(path.read_text())
    times = {name: {key: round(1e3 * report[name][key], 2) for key in ("p50", "p99")} for name in ("ttft", "itl", "gap")}
    return {**times, "output_tokens_per_s": report["output_tokens_per_s"], "load_average": os.getloadavg()[0]}


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both, in turns."""
    model = str(write_checkpoint(folder / "llama150m")) if given.model == "llama150m" else given.model
    dummy = ["--load-format", "dummy", "--max-model-len", "1024"] if given.model == "llama150m" else []
    flags = [model, *dummy, "--state-dir", str(folder / "state"), "--log-level", "warning", *given.server_flags]
    runs: dict[str, list[dict[str, Any]]] = {"without": [], "with": []}
    with server(flags) as url, httpx.Client(base_url=url, timeout=_PATIENCE_SECONDS) as http:
        name = http.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        uploaded = http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("batch.jsonl", batch_file(name))})
        file_id = uploaded.raise_for_status().json()["id"]
        load(url, given, seed=given.repeats)  # step costs are known now
        for seed in range(given.repeats):
            runs["without"].append(load(url, given, seed))
            with running_batch(http, file_id) as figures:
                found = load(url, given, seed)
            runs["with"].append({**found, "batch_requests_per_s": figures["requests"] / figures["seconds"]})
            print(json.dumps({kind: results[-1] for kind, results in runs.items()}), flush=True)
        with running_batch(http, file_id) as figures:
            time.sleep(given.requests / given.rate / 2)
    return {"runs": runs, "batch_alone_requests_per_s": figures["requests"] / figures["seconds"]}


def ratios(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """With over without, turn by turn."""
    found = {}
    for name in ("ttft", "itl", "gap"):
        for key in ("p50", "p99"):
            pairs = zip(runs["with"], runs["without"], strict=True)
            values = [beside[name][key] / alone[name][key] for beside, alone in pairs]
            found[f"{name} {key}"] = {"median": machine.median(values), "min": min(values), "max": max(values)}
    return found


def table(report: dict[str, Any]) -> Table:
    """Medians of both, and their ratio."""
    shown = Table(title=f"{report['model']}, {report['rate']:g} requests a second: milliseconds", title_justify="left")
    for column in ("", "without", "with a batch", "ratio", "from", "to"):
        shown.add_column(column, justify="right")
    for name, ratio in report["ratios"].items():
        what, key = name.split()
        middle = (machine.median([one[what][key] for one in report["runs"][kind]]) for kind in ("without", "with"))
        cells = (f"{ratio[part]:.2f}" for part in ("median", "min", "max"))
        shown.add_row(name, *(f"{value:.1f}" for value in middle), *cells)
    return shown


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pico", help="checkpoint directory, the bundled model, or llama150m for that shape")
    parser.add_argument("--rate", type=float, default=4.0, help="interactive requests a second")
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--server-flags", nargs=argparse.REMAINDER, default=[])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given, Path(folder))
    report = {**machine.describe(), "command": " ".join(["python -m benchmarks.batch_beside", *sys.argv[1:]])}
    report |= {"model": given.model, "rate": given.rate, "requests": given.requests, **found, "ratios": ratios(found["runs"])}
    given.results.write_text(json.dumps(report, indent=1) + "\n")
    Console(width=100).print(table(report))


if __name__ == "__main__":
    main()
