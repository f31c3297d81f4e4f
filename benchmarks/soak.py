"""A server under mixed traffic for long, beside a bursty neighbour: what clients see of it by minute, and what it takes.

    python -m benchmarks.soak [--minutes 30] [--rate REQUESTS_A_SECOND] [--out benchmarks/results/soak.json]

Starts a server with default flags and a state directory, finds out how many requests a second it answers in a closed loop (unless
--rate says how many are to be sent), and then sends 60 % of that: streamed completions and whole ones, several sequences, shared
prefixes, gRPC, small batches, clients who leave in mid-stream; two tenants of two classes; prompts of 8 to 640 tokens and outputs
of 8 to 128. There is a pause at the end of every minute. Every minute asks the same at the same times, with new words. A
neighbour keeps half of the cores busy for seconds at a time (`--cycle`, `--busy`).

Prints a line a minute, with the counters that moved for the first time, and writes the JSON after each, with every counter that
moved in it; at the end a picture beside it and what held. The machine must have nothing else to do. Ends with 1 if something did
not hold.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import hybrid150m, machine, servers
from benchmarks.batch_requests import write_checkpoint
from benchmarks.load.files import write
from benchmarks.load.minutes import Row, verdicts
from benchmarks.load.neighbour import neighbour
from benchmarks.load.plot import draw
from benchmarks.load.run import Soak, Subject, capacity, look
from benchmarks.load.schedule import minute
from benchmarks.peers import checkpoint

RESULTS = Path(__file__).parent / "results" / "soak.json"
OWN_MODEL, HYBRID = "llama150m", "hybrid150m"
_LOGGED = (" WARNING ", " ERROR ", " CRITICAL ")
_MOST_LINES = 100  # of the log, in the results
_TITLES = (
    *("min", "asked", "err", "left", "open", "TTFT p50", "p99", "ITL p50", "p99", "steps", "rows", "p99"),
    *("waiting", "most", "pages", "MiB", "cores"),
)
_WIDTHS = (3, 5, 4, 4, 4, 8, 7, 8, 7, 6, 6, 6, 7, 5, 6, 6, 5)


class Table:
    """Lines for people, as minutes end."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        print(_line(_TITLES), flush=True)

    def add(self, row: Row) -> None:
        """Print a minute, what went wrong in it, and the counters that moved for the first time."""
        ttft, itl, rows = row["ttft_s"], row["itl_s"], row["steps"].get("rows", {})
        waiting, pages = row["gauges"].get("waiting", {}), row["gauges"].get("pages", {})
        memory = sum(of["pss"] for of in row["memory_mib"].values())
        counts = (row["minute"], row["requests"], sum(row["errors"].values()), row["left"], row["open"])
        times = (ttft.get("p50"), ttft.get("p99"), itl.get("p50"), itl.get("p99"))
        steps = (row["steps"].get("count"), rows.get("mean"), rows.get("p99"))
        rest = (waiting.get("mean"), waiting.get("max"), pages.get("max"), memory, sum(row["cores"].values()))
        print(_line([*map(_number, (*counts, *times, *steps, *rest))]), flush=True)
        if row["errors"]:
            print(f"    errors: {row['errors']}", flush=True)
        if self._known and (new := {name: by for name, by in row["counters"].items() if name not in self._known}):
            print(f"    new counters: {new}", flush=True)
        self._known |= set(row["counters"])


def _line(words: Any) -> str:
    return " ".join(f"{word:>{width}}" for word, width in zip(words, _WIDTHS, strict=True))


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


async def measure(server: servers.Started, given: argparse.Namespace, report: dict[str, Any]) -> None:
    """Fill in the report, and write it after every minute."""
    subject = await look(server.http, server.grpc, server.popen.pid)
    rate = given.rate or await _rate(subject, given, report)
    soak = Soak(subject, minute(rate, subject.context, given.minute_seconds, forms=given.forms), given.minute_seconds)
    table = Table()
    report |= {"rate": rate, "minutes": soak.rows}

    def tell() -> None:
        table.add(soak.rows[-1])
        write(given.out, report)

    with neighbour(given.neighbours, given.cycle, given.busy):
        end = await soak.run(given.minutes, tell)
    report |= {"end": end, "batches": [asdict(batch) for batch in soak.batches]}
    report["verdicts"] = verdicts(soak.rows, soak.batches, end)


async def _rate(subject: Subject, given: argparse.Namespace, report: dict[str, Any]) -> float:
    found = await capacity(subject, given.clients, given.capacity_seconds)
    report["capacity"] = {"clients": given.clients, "seconds": given.capacity_seconds, "requests_per_s": found}
    print(f"{given.clients} clients that never rest: {found:.2f} requests a second", flush=True)
    return float(given.share * found)


def logged(text: str) -> list[str]:
    """The last lines of a server's log that warn."""
    return [line for line in text.splitlines() if any(level in line for level in _LOGGED)][-_MOST_LINES:]


def soak(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole measurement; what there is of it is in the JSON file after every minute."""
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.soak"), "model": given.model}
    report |= {"neighbour": {"cores": given.neighbours, "cycle_s": given.cycle, "busy_s": given.busy}}
    model, flags = given.model, ["--state-dir", str(folder / "state"), *given.server_flags]
    if model == OWN_MODEL:
        model = str(checkpoint.write_directory(folder / OWN_MODEL, dict(checkpoint.weights())))
    elif model == HYBRID:
        model, flags = str(write_checkpoint(folder / HYBRID, hybrid150m.CONFIG)), ["--load-format", "dummy", *flags]
    with servers.ready([model, *flags]) as server:
        try:
            uvloop.run(measure(server, given, report))
        finally:
            report["log"] = logged(server.said())
            write(given.out, report)
    return report


def main() -> int:
    """Run, write and print."""
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # and the server with it
    with tempfile.TemporaryDirectory() as folder:
        report = soak(given, Path(folder))
    draw(report["minutes"], given.out.with_suffix(".png"))
    for verdict in report["verdicts"]:
        print(f"{'holds' if verdict['holds'] else 'DOES NOT HOLD'}: {verdict['what']}: {verdict['found']}")
    print(f"{len(report['log'])} lines of the server's log warn")
    return 0 if all(verdict["holds"] for verdict in report["verdicts"]) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file; the picture lies beside it")
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--minute-seconds", type=float, default=60.0, help="fewer, for rehearsals")
    parser.add_argument("--rate", type=float, help="requests a second, instead of a share of the capacity")
    parser.add_argument("--share", type=float, default=0.6, help="of the capacity, that is asked for")
    parser.add_argument("--capacity-seconds", type=float, default=60.0, help="for which it is measured")
    parser.add_argument("--clients", type=int, default=32, help="with which it is measured")
    parser.add_argument("--model", default=OWN_MODEL, help=f"checkpoint directory, bundled model, or {HYBRID}")
    parser.add_argument("--forms", type=float, default=0.25, help="share of plain streams whose output must match a regex")
    parser.add_argument("--neighbours", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2), help="cores it takes")
    parser.add_argument("--cycle", type=float, default=20.0, help="seconds from one burst of the neighbour to the next")
    parser.add_argument("--busy", type=float, default=7.0, help="seconds of a burst")
    parser.add_argument("--server-flags", nargs=argparse.REMAINDER, default=[])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
