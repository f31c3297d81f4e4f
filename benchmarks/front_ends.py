"""What the servers add: a whole server as processes, over an engine whose steps take a set time and compute nothing.

    python -m benchmarks.front_ends [--surfaces http grpc] [--streams 64 256 1000] [--front-ends 1 2] [--seconds 6]

Three questions, each for streamed completions over HTTP and for Generate over gRPC, with clients in a process of their own that
ask for the next stream of 512 tokens when their last one has ended:

- `paced`: steps of 20 ms, a token for each stream. How long is a token on its way from the end of its step to its client
  (`late`), and how much longer than the step are the gaps between what comes (`added_itl`)?
- `ceiling`: steps of 4 ms, more than a front end takes for long. How many tokens and events a second come? One that falls behind
  sends the tokens of several steps in one event, so tokens are what counts.
- `memory`: steps of two seconds. How much more memory do 1,000 open streams take than 100?

All processes, the clients too, share the machine's cores; `cores` says how many each kept busy. Prints a table and writes
benchmarks/results/front_ends.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.paced_server import ROOT, PacedServer, paced_server
from benchmarks.stream_clients import Seen, Task

RESULTS = Path(__file__).parent / "results" / "front_ends.json"
STEP_SECONDS, CEILING_STEP_SECONDS, IDLE_STEP_SECONDS = 0.02, 0.004, 2.0
OUTPUT_TOKENS, WARM_UP_SECONDS, PATIENCE_SECONDS = 512, 2.0, 180.0
_REASON_CHARS = 400  # of a traceback's end
CEILING_STREAMS, FEW_STREAMS, MANY_STREAMS = 256, 100, 1000


def observe(server: PacedServer, surface: str, streams: int, seconds: float) -> Seen:
    """Let clients load a server. Raises RuntimeError with what they wrote if a stream breaks."""
    address = server.http if surface == "http" else server.grpc
    task = Task(surface, address, streams, OUTPUT_TOKENS, WARM_UP_SECONDS, seconds, server.processes)
    command = [sys.executable, "-m", "benchmarks.stream_clients", json.dumps(asdict(task))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    return Seen(**json.loads(done.stdout))


def case(surface: str, streams: int, front_ends: int, step_seconds: float, seconds: float) -> dict[str, Any]:
    """One line of the results: rates a second, times in milliseconds."""
    load = os.getloadavg()[0]
    with paced_server(front_ends=front_ends, rows=streams, step_seconds=step_seconds) as server:
        seen = observe(server, surface, streams, seconds)
    busy = sum(cores for name, cores in seen.cores.items() if name.startswith("front_end"))
    return {
        "surface": surface,
        "streams": streams,
        "front_ends": front_ends,
        "step_ms": step_seconds * 1e3,
        "events_per_s": round(seen.events / seen.seconds),
        "tokens_per_s": round(seen.tokens / seen.seconds),
        "late_ms": _milliseconds(seen.late, 0.0),
        "added_itl_ms": _milliseconds(seen.gaps, step_seconds),
        "cores": {name: round(cores, 3) for name, cores in seen.cores.items()},
        "front_end_us_per_token": round(busy * seen.seconds / max(seen.tokens, 1) * 1e6, 1),
        "load_average_before": round(load, 2),
    }


def attempt(surface: str, streams: int, front_ends: int, step_seconds: float, seconds: float) -> dict[str, Any]:
    """A case, or that a stream broke in it, and how; the others go on."""
    try:
        return case(surface, streams, front_ends, step_seconds, seconds)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-_REASON_CHARS:]
        return {"surface": surface, "streams": streams, "front_ends": front_ends, "broke": reason}


def memory(surface: str, seconds: float) -> dict[str, Any]:
    """KiB that a stream takes which waits for its next token, in each process."""
    grown: dict[int, dict[str, int]] = {}
    for streams in (FEW_STREAMS, MANY_STREAMS):
        with paced_server(front_ends=1, rows=MANY_STREAMS, step_seconds=IDLE_STEP_SECONDS) as server:
            seen = observe(server, surface, streams, seconds)
        grown[streams] = {name: after - before for name, (before, after) in seen.memory.items()}
    return {
        "surface": surface,
        "kib_per_stream": {
            name: round((grown[MANY_STREAMS][name] - grown[FEW_STREAMS][name]) / (MANY_STREAMS - FEW_STREAMS) / 1024, 1)
            for name in ("front_end_0", "engine")
        },
    }


def _milliseconds(percentiles: dict[str, float], less: float) -> dict[str, float]:
    return {name: round((value - less) * 1e3, 2) for name, value in percentiles.items()}


def _table(kind: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=kind, title_justify="left")
    columns = ("surface", "streams", "front ends", "events/s", "tokens/s", "late p50", "p99", "added ITL p50", "p99")
    for column in (*columns, "front end us/token", "cores: engine", "front ends", "clients", "load"):
        table.add_column(column, justify="right")
    for row in rows:
        if "broke" in row:
            table.add_row(row["surface"], str(row["streams"]), str(row["front_ends"]), "a stream broke")
            continue
        late, gaps, cores = row["late_ms"], row["added_itl_ms"], row["cores"]
        front_ends = sum(value for name, value in cores.items() if name.startswith("front_end"))
        times = [part.get(name, "") if kind == "paced" else "" for part in (late, gaps) for name in ("p50", "p99")]
        counts = (row["streams"], row["front_ends"], row["events_per_s"], row["tokens_per_s"])
        busy = (cores["engine"], round(front_ends, 3), cores["clients"])
        values = (row["surface"], *counts, *times, row["front_end_us_per_token"], *busy, row["load_average_before"])
        table.add_row(*map(str, values))
    return table


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--surfaces", nargs="+", choices=("http", "grpc"), default=["http", "grpc"])
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256, 1000])
    parser.add_argument("--front-ends", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=6.0)
    given = parser.parse_args()
    report: dict[str, Any] = {**machine.describe(), "command": " ".join(["python -m benchmarks.front_ends", *sys.argv[1:]])}
    console = Console()
    console.width = max(console.width, 180)
    steps = {"paced": (given.streams, STEP_SECONDS), "ceiling": ([CEILING_STREAMS], CEILING_STEP_SECONDS)}
    for kind, (streams, step_seconds) in steps.items():
        report[kind] = [
            attempt(surface, count, front_ends, step_seconds, given.seconds)
            for surface, front_ends, count in itertools.product(given.surfaces, given.front_ends, streams)
        ]
        console.print(_table(kind, report[kind]))
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    report["memory"] = [memory(surface, given.seconds) for surface in given.surfaces]
    console.print(report["memory"])
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
