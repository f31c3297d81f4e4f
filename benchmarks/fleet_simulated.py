"""A hundred simulated replicas under a spike while some of them fail: figures and a plot.

    python -m benchmarks.fleet_simulated [--seeds 1 2]

10,000 users, a request each: 70 % interactive and 30 % batch, of 32 tenants whose shares are Zipf's, with a system prompt each.
They come at a rate that keeps 100 replicas of Llama 3 8B on an H100 lightly busy, and ten times as fast for a while. In the
middle of that ten replicas fail, and are back after a cold start with empty caches. Their requests go on in others, behind the
tokens that they have. Beside it, for each seed, the same without failures. Writes benchmarks/results/fleet_simulated.json and, of
the first seed with failures, fleet_simulated.png.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks import machine
from jaxserve.commands import wide_console
from jaxserve.config.fields import SchedulerConfig
from jaxserve.simulation.ledger import ENDS
from jaxserve.simulation.plots import plot
from jaxserve.simulation.report import Report, report
from jaxserve.simulation.scenario import Scenario, simulate
from jaxserve.simulation.settings import ReplicaConfig
from jaxserve.workload.settings import SloConfig, WorkloadConfig

RESULTS = Path(__file__).parent / "results" / "fleet_simulated.json"
USERS, REPLICAS, TENANTS = 10_000, 100, 32
RATE, PEAK, SPIKE_AT, SPIKE_FOR = 100.0, 10.0, 10.0, 8.0
FAILING, FAIL_AT, COLD_START = 10, 14.0, 20.0


def scenario(seed: int, *, failures: bool) -> Scenario:
    fail = ",".join(f"{number}@{FAIL_AT}-{FAIL_AT + COLD_START}" for number in range(FAILING))
    return Scenario(
        replica=ReplicaConfig(replicas=REPLICAS, router="prefix", fail=fail if failures else None),
        scheduler=SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=2048),
        workload=WorkloadConfig(
            requests=USERS,
            arrivals="spike",
            rate=RATE,
            peak=PEAK,
            spike_at_s=SPIKE_AT,
            spike_for_s=SPIKE_FOR,
            classes="interactive_paid=0.7,batch=0.3",
            tenants=",".join(f"t{rank}={1.0 / rank}" for rank in range(1, TENANTS + 1)),
            prefixes=1,
            prefix_tokens=1024,
            prompt_tokens=256,
            output_tokens=24,
            seed=seed,
        ),
        slo=SloConfig(),
    )


def row(result: Report, seed: int, *, failures: bool) -> dict[str, Any]:
    """The figures of a run."""
    classes = {
        name: {
            "ttft_ms": {share: round(1e3 * getattr(of.ttft, share), 1) for share in ("p50", "p99")},
            "itl_ms": {share: round(1e3 * getattr(of.itl, share), 1) for share in ("p50", "p99", "max")},
            "within_slo": round(of.slo_share, 4),
        }
        for name, of in result.classes.items()
    }
    ended = {name: getattr(result.all, name) for name in ("received", *ENDS)}
    gpu_hours = REPLICAS * result.seconds / 3600
    return {
        "seed": seed,
        "failing": FAILING if failures else 0,
        **ended,
        "went_on_elsewhere": result.failovers,
        "tokens_lost": result.engines.tokens_lost,
        "prefix_hit_rate": round(result.engines.prefix_hit_rate, 4),
        "gpu_hours_per_million_output_tokens": round(gpu_hours / (result.all.output_tokens_per_s * result.seconds / 1e6), 2),
        "classes": classes,
    }


def show(rows: list[dict[str, Any]]) -> None:
    names = ("seed", "failing", "finished", "failed", "went_on_elsewhere", "tokens_lost")
    table = Table(*names, "TTFT p99 ms: interactive", "batch", "longest ITL ms", title=f"{USERS:,} users, {REPLICAS} replicas")
    for one in rows:
        interactive, batch = (one["classes"][name] for name in ("interactive_paid", "batch"))
        longest = max(interactive["itl_ms"]["max"], batch["itl_ms"]["max"])
        values = (*(one[name] for name in names), interactive["ttft_ms"]["p99"], batch["ttft_ms"]["p99"], longest)
        table.add_row(*map(str, values))
    wide_console(140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    args = parser.parse_args()
    logging.getLogger("jaxserve").setLevel(logging.ERROR)  # schedulers tell how they adapt
    start, rows = time.process_time(), []
    for seed in args.seeds:
        for failures in (False, True):
            asked = scenario(seed, failures=failures)
            result = report(asked, simulate(asked))
            rows.append(row(result, seed, failures=failures))
            if failures and seed == args.seeds[0]:
                plot(result, RESULTS.with_suffix(".png"))
    found = {
        **machine.describe(),
        "command": machine.command("benchmarks.fleet_simulated"),
        "processor_seconds": round(time.process_time() - start, 1),
        "runs": rows,
    }
    show(rows)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
