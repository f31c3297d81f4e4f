"""What a fleet costs and what it survives: the figures of docs/fleet.md.

    python -m benchmarks.fleet [--part overhead kills routing] [--kills 20] [--streams 64] [--requests 400] [--busy]

- `overhead`: one replica of the bundled model behind an ingress beside one server of the same flags, asked in turns.
- `kills`: two replicas; the engine of one is killed (SIGKILL) in the middle of greedy streams, again and again. Streams that end
  whole, that went on elsewhere, that failed, whose tokens are not those of an undisturbed run; seconds until both serve again.
- `routing`: prompts of 32 tenants, whose shares are Zipf's, each with a system prompt of 300 tokens, on four engines behind one
  front end; a cache has room for ten of the system prompts, so that all four hold them only if each holds others, or for three.

All processes share the machine. Writes benchmarks/results/fleet.json, where parts that did not run stay as they were.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks import machine
from benchmarks.fleet_kills import kills
from benchmarks.fleet_overhead import overhead
from benchmarks.fleet_routing import routing
from jaxserve.commands import wide_console

RESULTS = Path(__file__).parent / "results" / "fleet.json"
PARTS = ("overhead", "kills", "routing")


def show(results: dict[str, Any]) -> None:
    console = wide_console(120)
    if "overhead" in results:
        names = ("streams", "TTFT ms: server", "fleet", "tokens/s: server", "fleet", "ratio")
        table = Table(*names, title="One replica behind an ingress")
        for row in results["overhead"]["found"]:
            values = (*row["ttft_ms"].values(), *row["tokens_per_s"].values(), row["throughput_ratio"])
            table.add_row(str(row["streams"]), *map(str, values))
        console.print(table)
    if "kills" in results:
        found = results["kills"]["found"]
        counts = ("kills", "whole", "resumed", "failed", "different")
        table = Table(*counts, "seconds to full strength", title=f"An engine is killed under {found['streams']} streams")
        table.add_row(*(str(found[name]) for name in counts), str(found["seconds_to_full_strength"]))
        console.print(table)
    if "routing" in results:
        columns = ("router", "hit rate", "tokens", "TTFT p50 ms", "p90", "most requests / mean", "most work / mean")
        for cache in results["routing"]["found"]["caches"]:
            table = Table(*columns, title=f"Shared beginnings, {cache['system_prompts_a_cache_holds']} of 32 in a cache")
            for row in cache["routers"]:
                loads = (row["most_requests_over_mean"], row["most_work_over_mean"])
                cells = (row["tokens_computed"], *row["ttft_ms"].values(), *loads)
                table.add_row(row["router"], f"{row['prefix_hit_rate']:.1%}", *map(str, cells))
            console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=10, help="of each number of streams, for the overhead")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--streams", type=int, default=64, help="that a kill hits")
    parser.add_argument("--tokens", type=int, default=256, help="of each stream")
    parser.add_argument("--requests", type=int, default=400, help="of each router")
    parser.add_argument("--at-once", type=int, default=8, help="requests in flight, for the routers")
    parser.add_argument("--busy", action="store_true", help="write down that others used the machine, too")
    args = parser.parse_args()
    parts: dict[str, Callable[[], Any]] = {
        "overhead": lambda: overhead(args.rounds, args.tokens),
        "kills": lambda: kills(args.kills, args.streams, args.tokens),
        "routing": lambda: routing(args.requests, args.at_once),
    }
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in args.part:
        results[part] = {
            **machine.describe(),
            "command": machine.command("benchmarks.fleet"),
            "machine": "busy: others ran on it, so only counts and ratios say something" if args.busy else "idle",
            "load_average_before": round(os.getloadavg()[0], 1),
            "found": parts[part](),
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    show(results)


if __name__ == "__main__":
    main()
