"""A paying client's inter-token latency beside each attack alone.

    python -m benchmarks.hostile_each [--seconds 20] [--rate REQUESTS_PER_SECOND] [--attackers 2] [--only ATTACK ...] [--out FILE]

One server, and the paying client of `benchmarks.soak` at 30 % of the measured capacity. It has SECONDS beside nobody, as many
beside ordinary requests, and as many beside each attack of `benchmarks.load.hostile`, which clients repeat without end. The
file has a row for each, with the ratio of its ITL p99 to that beside ordinary requests. Exits with 1 if a request of the paying
client ended with a 5xx status or a broken stream. The machine must have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import machine, servers
from benchmarks.hostile import SHARE, broken
from benchmarks.load.files import write
from benchmarks.load.hostile import BY_NAME, hostile
from benchmarks.load.minutes import Row
from benchmarks.load.run import Soak, capacity, look
from benchmarks.load.schedule import minute

RESULTS = Path(__file__).parent / "results" / "hostile_each.json"
WARM_UP, NOBODY, ORDINARY = "warm-up", "nobody", "ordinary requests"
ORDINARY_RATE = 5.0  # requests a second: about as many as two clients send that wait 0.2 s between two


class Others:
    """Who sends requests beside the paying client: one after the other."""

    def __init__(self, url: str, counts: Path, attackers: int, attacks: Sequence[str]) -> None:
        self.names = [WARM_UP, NOBODY, ORDINARY, *attacks]
        self.statuses: list[Row] = []
        self._url = url
        self._counts = counts
        self._attackers = attackers
        self._turns = self._take_turns()

    def next(self) -> None:
        """The one that sends now ends, and the next begins."""
        next(self._turns, None)

    def _take_turns(self) -> Iterator[None]:
        for name in self.names:
            self._counts.unlink(missing_ok=True)
            with self._sending(name):
                yield
            self.statuses.append(json.loads(self._counts.read_text())["statuses"] if self._counts.exists() else {})

    @contextmanager
    def _sending(self, name: str) -> Iterator[None]:
        if name in (WARM_UP, NOBODY):
            yield
            return
        chosen: dict[str, Any] = {"only": name} if name in BY_NAME else {"ordinary": ORDINARY_RATE}
        with hostile(self._url, self._counts, self._attackers, **chosen):
            yield


async def _measure(server: servers.Started, given: argparse.Namespace) -> Row:
    subject = await look(server.http, server.grpc, server.popen.pid)
    rate = given.rate or SHARE * await capacity(subject, given.clients, given.capacity_seconds)
    soak = Soak(subject, minute(rate, subject.context, given.seconds), given.seconds)
    with tempfile.TemporaryDirectory() as folder:
        others = Others(server.http, Path(folder) / "counts.json", given.attackers, given.only or list(BY_NAME))
        others.next()
        await soak.run(len(others.names), others.next)
    seen = dict(zip(others.names, soak.rows, strict=True))
    calm = seen[ORDINARY]["itl_s"]["p99"]
    rows = [
        {
            "beside": name,
            "itl_s": row["itl_s"],
            "ratio": round(row["itl_s"]["p99"] / calm, 2),
            "ttft_s": row["ttft_s"],
            "errors": row["errors"],
            "statuses": statuses,
        }
        for (name, row), statuses in zip(seen.items(), others.statuses, strict=True)
        if name != WARM_UP
    ]
    return {"rate": rate, "rows": rows}


def main() -> int:
    """Measure, print and write."""
    given = _arguments()
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.hostile_each"), "model": given.model}
    with servers.ready([given.model]) as server:
        report |= uvloop.run(_measure(server, given))
    write(given.out, report)
    for row in sorted(report["rows"], key=lambda row: -row["ratio"]):
        print(f"{row['beside']:24} ITL p99 {1000 * row['itl_s']['p99']:6.1f} ms, {row['ratio']:.2f} times  {row['errors'] or ''}")
    return 1 if any(broken(row["errors"]) for row in report["rows"]) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=20.0, help="beside each")
    parser.add_argument("--rate", type=float, help="requests per second of the paying client; default: 30 %% of the capacity")
    parser.add_argument("--clients", type=int, default=16, help="with which the capacity is measured")
    parser.add_argument("--capacity-seconds", type=float, default=15.0)
    parser.add_argument("--attackers", type=int, default=2, help="hostile clients that send one request at a time")
    parser.add_argument("--only", nargs="+", choices=BY_NAME, metavar="ATTACK", help=f"default: all of {', '.join(BY_NAME)}")
    parser.add_argument("--model", default="pico")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
