"""What scaling costs and what it keeps: the figures of docs/fleet.md.

    python -m benchmarks.fleet_scaling [--share 1.0]

A simulated fleet of Llama 3 8B on H100s, prompts of 5,000 tokens in the median and outputs of 16, so that prompts are the work:
a spike (ten times the rate at once, for 90 s) and a day of 400 s (crest ten times the trough), each with the policy as it is,
without its look ahead at growth, and with as many replicas all the time as the policy may have at most. A replica takes 40 s to
start. `--share` runs a part of each, for a quick look. Writes benchmarks/results/fleet_scaling.json.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks import machine
from jaxserve.commands import wide_console
from jaxserve.config.fields import SchedulerConfig
from jaxserve.simulation.report import Report, report
from jaxserve.simulation.scenario import Scenario, simulate
from jaxserve.simulation.settings import ReplicaConfig
from jaxserve.workload.settings import SloConfig, WorkloadConfig

RESULTS = Path(__file__).parent / "results" / "fleet_scaling.json"
MOST = 8
SCALES = f"min=1,max={MOST},replica-work=16384,usual-prefill=1,start-seconds=40,cooldown-seconds=60"
FLEETS: dict[str, dict[str, Any]] = {
    "growth": {"autoscale": SCALES},
    "no growth": {"autoscale": f"{SCALES},horizon-seconds=0"},
    "fixed": {"replicas": MOST},
}
SIZES: dict[str, Any] = {"prompt_tokens": 5000, "prompt_sigma": 0.3, "output_tokens": 16, "output_sigma": 0.5}
TRAFFIC: dict[str, dict[str, Any]] = {
    "spike": {"requests": 2900, "rate": 2.5, "arrivals": "spike", "peak": 10.0, "spike_at_s": 90.0, "spike_for_s": 90.0},
    "day": {"requests": 4000, "rate": 10.0, "arrivals": "diurnal", "peak": 10.0, "period_s": 400.0},
}


def run(traffic: str, fleet: str, share: float) -> dict[str, Any]:
    settings = {**TRAFFIC[traffic], **SIZES}
    settings["requests"] = max(round(settings["requests"] * share), 1)
    scenario = Scenario(
        replica=ReplicaConfig(**FLEETS[fleet]),
        scheduler=SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=2048),
        workload=WorkloadConfig(**settings),
        slo=SloConfig(slo_ttft_ms=1000.0),
    )
    return {"traffic": traffic, "fleet": fleet, **_figures(report(scenario, simulate(scenario)))}


def _figures(result: Report) -> dict[str, Any]:
    everybody, used = result.all, result.usage
    return {
        "requests": everybody.received,
        "seconds": round(result.seconds, 1),
        "violations": round(1.0 - everybody.slo_share, 4),
        "late": everybody.late,
        "slow": everybody.slow,
        "refused": everybody.refused + everybody.expired,
        "ttft_p99_ms": round(1e3 * everybody.ttft.p99, 1),
        "gpu_hours": round(used.gpu_hours, 3),
        "mean_replicas": round(used.mean_replicas, 2),
        "usd": round(used.usd, 3),
        "usd_per_m_tokens": round(used.usd_per_m_tokens, 2),
        "decisions": [[one.time, one.replicas, one.reason] for one in used.decisions],
    }


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(
        "traffic", "fleet", "violations", "late", "slow", "refused", "TTFT p99 ms", "GPU-hours", "replicas", "$/M tokens"
    )
    for row in rows:
        counts = (f"{row[name]:,}" for name in ("late", "slow", "refused"))
        figures = (f"{row['ttft_p99_ms']:,.0f}", f"{row['gpu_hours']:.3f}", f"{row['mean_replicas']:.2f}")
        cost = f"{row['usd_per_m_tokens']:.2f}"
        table.add_row(row["traffic"], row["fleet"], f"{row['violations']:.2%}", *counts, *figures, cost)
    wide_console(120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the requests")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # a hundred engines say what they learn
    rows = [run(traffic, fleet, args.share) for traffic in TRAFFIC for fleet in FLEETS]
    show(rows)
    RESULTS.write_text(
        json.dumps({**machine.describe(), "command": machine.command("benchmarks.fleet_scaling"), "runs": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
