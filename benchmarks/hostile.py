"""A paying client beside a hostile one, minute by minute, on one server or on a fleet of two.

    python -m benchmarks.hostile [--minutes 60] [--calm-minutes 60] [--fleet] [--rate REQUESTS_PER_SECOND] [--out FILE]

Two runs of equal minutes (those of `benchmarks.soak`, at 30 % of the measured capacity): first beside clients that send the
attacks of `benchmarks.load.hostile` in a loop, then beside the same number of ordinary requests. Each run has its own server,
which every attack reaches before the first minute: what a server keeps of the first use of a part (compiled steps, pages of the
cache that were never touched, grammars) is in the memory of both.
The file holds every minute of both runs, the statuses that the attacks got, engine restarts, and the verdicts:

- no request of the paying client ends with a 5xx status or a broken stream;
- its ITL p99 with attacks is at most 1.5 times its ITL p99 without;
- the server's memory with attacks is at most 1.1 times its memory without: the median of the last ten minutes.

Exits with 1 if a verdict does not hold. The machine must have nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from benchmarks import machine, servers
from benchmarks.load.files import write
from benchmarks.load.hostile import hostile
from benchmarks.load.minutes import Row, verdicts
from benchmarks.load.run import Soak, capacity, look
from benchmarks.load.schedule import minute
from benchmarks.soak import Table, logged

RESULTS = Path(__file__).parent / "results" / "hostile.json"
SHARE = 0.3  # of the capacity, that the paying client uses
ITL_RATIO, MEMORY_RATIO = 1.5, 1.1
WARM_UP = 1  # minutes that no verdict counts


def _server(given: argparse.Namespace, state: str) -> AbstractContextManager[servers.Started]:
    if given.fleet:
        return servers.fleet({"model": given.model, "drain-timeout": 2, "state-dir": state}, replicas=2)
    return servers.ready([given.model, "--state-dir", state, *given.server_flags])


async def _measure(server: servers.Started, given: argparse.Namespace, rate: float | None, ordinary: float | None) -> Row:
    minutes = given.minutes if ordinary is None else given.calm_minutes or given.minutes
    subject = await look(server.http, server.grpc, server.popen.pid)
    rate = rate or SHARE * await capacity(subject, given.clients, given.capacity_seconds)
    print(
        f"{rate:.2f} requests per second, beside {'attacks' if ordinary is None else f'{ordinary:.2f} ordinary ones'}", flush=True
    )
    soak = Soak(subject, minute(rate, subject.context, given.minute_seconds), given.minute_seconds)
    table = Table()
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        with hostile(server.http, counts, given.attackers):
            await asyncio.sleep(given.first_seconds)
        counts.unlink()
        with hostile(server.http, counts, given.attackers, ordinary):
            end = await soak.run(minutes, lambda: table.add(soak.rows[-1]))
        other = json.loads(counts.read_text())
    found = verdicts(soak.rows, soak.batches, end)
    seen = soak.seen_after(min(WARM_UP, minutes - 1))
    run = {"rate": rate, "other": other, "minutes": soak.rows, "seen": seen, "end": end}
    return {**run, "verdicts": found, "log": logged(server.said())}


def _run(given: argparse.Namespace, rate: float | None, ordinary: float | None) -> Row:
    with tempfile.TemporaryDirectory() as state, _server(given, state) as server:
        row: Row = uvloop.run(_measure(server, given, rate, ordinary))
        return row


def broken(errors: Mapping[str, int]) -> dict[str, int]:
    """Those that are not refusals: 5xx statuses and broken streams."""
    return {error: count for error, count in errors.items() if not error.startswith(("4", "grpc RESOURCE"))}


def compare(attacked: Row, calm: Row) -> list[Row]:
    """The verdicts over two runs."""
    errors: Counter[str] = sum((Counter(row["errors"]) for row in attacked["minutes"]), Counter())
    itl = {name: of["seen"]["itl_s"]["p99"] for name, of in (("attacked", attacked), ("calm", calm))}
    memory = {name: round(median(map(_memory, of["minutes"][-10:])), 1) for name, of in (("attacked", attacked), ("calm", calm))}
    return [
        {"what": "no 5xx, no broken stream", "found": dict(errors), "holds": not broken(errors)},
        _ratio("ITL p99, seconds", itl, ITL_RATIO),
        _ratio("memory, MiB", memory, MEMORY_RATIO),
    ]


def _memory(row: Row) -> float:
    return float(sum(of["pss"] for of in row["memory_mib"].values()))


def _ratio(what: str, found: dict[str, float], limit: float) -> Row:
    ratio = found["attacked"] / found["calm"]
    return {"what": f"{what}: at most {limit} times", "found": {**found, "ratio": round(ratio, 3)}, "holds": ratio <= limit}


def main() -> int:
    """Run both, compare and write."""
    given = _arguments()
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.hostile"), "model": given.model}
    report |= {"fleet": given.fleet, "attacked": _run(given, given.rate, None)}
    write(given.out, report)
    attacked = report["attacked"]
    ordinary = attacked["other"]["requests"] / attacked["other"]["seconds"]
    report["calm"] = _run(given, attacked["rate"], ordinary)
    report["verdicts"] = compare(attacked, report["calm"])
    write(given.out, report)
    for verdict in report["verdicts"]:
        print(f"{'holds' if verdict['holds'] else 'DOES NOT HOLD'}: {verdict['what']}: {verdict['found']}")
    return 0 if all(verdict["holds"] for verdict in report["verdicts"]) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--calm-minutes", type=int, help="of the run without attacks; default: as many")
    parser.add_argument("--first-seconds", type=float, default=90.0, help="of attacks before the first minute")
    parser.add_argument("--minute-seconds", type=float, default=60.0, help="shorter for rehearsals")
    parser.add_argument("--fleet", action="store_true", help="a fleet of two replicas (needs Ray)")
    parser.add_argument("--rate", type=float, help="requests per second of the paying client; default: 30 %% of the capacity")
    parser.add_argument("--clients", type=int, default=16, help="with which the capacity is measured")
    parser.add_argument("--capacity-seconds", type=float, default=30.0)
    parser.add_argument("--attackers", type=int, default=2, help="hostile clients that send one request at a time")
    parser.add_argument("--model", default="pico")
    parser.add_argument("--server-flags", nargs=argparse.REMAINDER, default=[])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
