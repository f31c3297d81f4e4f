"""The classic comparisons of serving policies, each on the simulator with the product's own scheduler.

    python -m benchmarks.comparisons [--only NAME ...]
    python -m benchmarks.comparison_plots

Writes benchmarks/results/comparisons.json, from which the second command draws the plots of docs/scheduling.md. llama-3-8b on one
H100. Where a comparison needs a policy that the product does not have (static batches, first come first served between
tenants, other victims), the scheduler is given another `Policy`; all else stays as it is.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks import machine
from jaxserve.config.fields import SchedulerConfig
from jaxserve.scheduler.policy import DEFAULT_POLICY, Policy
from jaxserve.simulation.costs import CostModel
from jaxserve.simulation.fleet import Fleet, RetryPolicy
from jaxserve.simulation.ledger import merged
from jaxserve.simulation.report import Report, report
from jaxserve.simulation.scenario import Scenario, build, replica_spec
from jaxserve.simulation.settings import ReplicaConfig
from jaxserve.types import ServiceClass
from jaxserve.workload.generate import generate
from jaxserve.workload.requests import WorkloadRequest
from jaxserve.workload.settings import SloConfig, WorkloadConfig
from jaxserve.workload.stats import Percentiles

RESULTS = Path(__file__).parent / "results" / "comparisons.json"
POINTS = 120  # of a curve


def simulate(
    *,
    replica: dict[str, Any] | None = None,
    scheduler: dict[str, Any] | None = None,
    slo: dict[str, Any] | None = None,
    policy: Policy = DEFAULT_POLICY,
    retry: RetryPolicy | None = None,
    **workload: Any,
) -> tuple[Report, Fleet]:
    """Simulate one variant to its end; `policy` is its scheduler's, `retry` its clients'."""
    scenario = Scenario(
        replica=ReplicaConfig(**(replica or {})),
        scheduler=SchedulerConfig(**{"ttft_target_ms": 0.0, **(scheduler or {})}),
        workload=WorkloadConfig(**workload),
        slo=SloConfig(**(slo or {})),
    )
    fleet = build(scenario, policy=policy, retry=retry)
    while fleet.step():
        pass
    fleet.ledger.check()
    return report(scenario, fleet), fleet


def run(**settings: Any) -> Report:
    """The report of a variant."""
    return simulate(**settings)[0]


def figures(result: Report) -> dict[str, Any]:
    """What every comparison keeps of a run."""
    service, engines = result.all, result.engines
    return {
        "seconds": result.seconds,
        "received": service.received,
        "finished": service.finished,
        "refused": service.refused,
        "expired": service.expired,
        "ttft_p50_s": service.ttft.p50,
        "ttft_p99_s": service.ttft.p99,
        "itl_p50_s": service.itl.p50,
        "itl_p99_s": service.itl.p99,
        "itl_max_s": service.itl.max,
        "e2e_p50_s": service.e2e.p50,
        "output_tokens_per_s": service.output_tokens_per_s,
        "goodput_tokens_per_s": service.goodput_tokens_per_s,
        "slo_share": service.slo_share,
        "mean_rows": engines.mean_rows,
        "preemptions": engines.preemptions,
        "swapped": engines.swapped,
        "tokens_recomputed": engines.tokens_recomputed,
    }


# Static against continuous batching


class StaticBatches:
    """Start what waits when nothing runs, as many as there are rows, and nobody else before the last of them has ended."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._end = 0  # sequences that have started when the batch is full

    def __call__(self, num_running: int, num_waiting: int, num_started: int) -> bool:
        """See `Policy.may_start`."""
        if not num_running:
            self._end = num_started + min(num_waiting, self._rows)
        return num_started < self._end


def batching() -> dict[str, Any]:
    """Throughput and latency as the load grows."""
    runs = []
    for rate in (1, 2, 4, 8, 16, 24, 32, 40, 48):
        for name, policy in (("static", Policy(may_start=StaticBatches(64))), ("continuous", DEFAULT_POLICY)):
            result = run(
                requests=max(100, 20 * rate),
                rate=float(rate),
                classes="batch=1",
                prompt_tokens=256,
                output_tokens=128,
                output_sigma=0.8,
                scheduler={"max_num_seqs": 64, "max_num_batched_tokens": 2048},
                policy=policy,
            )
            runs.append({"policy": name, "rate": rate, **figures(result)})
    return {"runs": runs}


# Chunked prefill


def chunked_prefill() -> dict[str, Any]:
    """Time between tokens, while long prompts arrive."""
    variants = {
        "whole prompts": {"max_num_batched_tokens": 8192, "itl_target_ms": 0.0},
        "chunks of 512": {"max_num_batched_tokens": 512, "itl_target_ms": 0.0},
        "paced to 25 ms": {"max_num_batched_tokens": 8192, "itl_target_ms": 25.0},
    }
    runs = []
    for name, settings in variants.items():
        result = run(
            requests=300,
            rate=4.0,
            prompt_tokens=2000,
            prompt_sigma=0.8,
            output_tokens=200,
            scheduler={"max_num_seqs": 64, **settings},
        )
        runs.append({"policy": name, **figures(result), "itl_curve": thinned(result.itl_curve)})
    return {"runs": runs}


def thinned(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most so many points of a distribution, the ends among them."""
    places = np.unique(np.linspace(0, len(curve) - 1, min(POINTS, len(curve))).astype(int))
    return [curve[place] for place in places]


# Preemption victims


VICTIMS = {
    "oldest first": Policy(victim=lambda victim: (victim.sequence.order,)),  # of those younger than the one in need
    "youngest first": Policy(victim=lambda victim: (-victim.sequence.order,)),
    "cheapest a page": DEFAULT_POLICY,
}


def victims() -> dict[str, Any]:
    """Tokens computed again, with too little memory and nothing held back for growth."""
    runs = []
    for name, policy in VICTIMS.items():
        for seed in range(2):
            result = run(
                requests=400,
                rate=30.0,
                seed=seed,
                classes="batch=1",
                prompt_tokens=300,
                prompt_sigma=1.0,
                output_tokens=300,
                output_sigma=0.8,
                replica={"num_pages": 1500, "prefix_caching": False},
                scheduler={"max_num_seqs": 64, "max_num_batched_tokens": 1024, "growth_reserve": 0.0},
                policy=policy,
            )
            runs.append({"policy": name, "seed": seed, **figures(result), "tokens": result.engines.tokens})
    return {"runs": runs}


# Fairness


FIRST_COME = Policy(order=lambda first, work: first.request.arrival)  # first served, between tenants too
LIGHT = ("one", "two", "three", "four")
FAIR_REPLICA = {"prefix_caching": False}
FAIR_SCHEDULER = {"max_num_seqs": 64, "max_num_batched_tokens": 512}
QUOTA = {"kv_share": 0.5, "burst_headroom": 0.125}  # a tenant's; so there is room for another whenever one comes
SHARES = {"tenants": {"heavy": QUOTA, "*": {**QUOTA, "prefill_reserve": 0.5}}}


def fairness() -> dict[str, Any]:
    """One tenant sends twenty times as much as each of four others. The queue is bounded by its deadline alone."""
    tenants = ",".join(["heavy=20", *(f"{name}=1" for name in LIGHT)])
    with tempfile.TemporaryDirectory() as folder:
        light = _light_ones(tenants, Path(folder))
        shares = Path(folder) / "policies.json"
        shares.write_text(json.dumps(SHARES))
        runs = [
            _fair_run("alone", trace=light),
            _fair_run("first come, first served", policy=FIRST_COME, tenants=tenants, **MODERATE),
            _fair_run("fair", tenants=tenants, **MODERATE),
            _fair_run("fair, with shares", policies=str(shares), tenants=tenants, **MODERATE),
        ]
        crowded = [
            _fair_run("first come, first served", policy=FIRST_COME, tenants=tenants, **CROWDED),
            _fair_run("fair", tenants=tenants, **CROWDED),
            _fair_run("fair, with shares", policies=str(shares), tenants=tenants, **CROWDED),
        ]
    return {"light": runs, "crowded": crowded}


MODERATE: dict[str, Any] = {"requests": 2400, "rate": 60.0, "prompt_tokens": 256}
CROWDED: dict[str, Any] = {"requests": 15000, "rate": 360.0, "prompt_tokens": 256}  # even a light one wants more than a fifth


def _light_ones(tenants: str, folder: Path) -> str:
    """The same workload without the heavy tenant, as a trace."""
    requests = generate(WorkloadConfig(tenants=tenants, **MODERATE), 8192, ServiceClass.INTERACTIVE_PAID)
    path = folder / "light.jsonl"
    path.write_text("".join(json.dumps(_entry(one)) + "\n" for one in requests if one.tenant in LIGHT))
    return str(path)


def _entry(one: WorkloadRequest) -> dict[str, Any]:
    return {
        "arrival": one.arrival,
        "prompt_tokens": one.prompt_tokens,
        "output_tokens": one.output_tokens,
        "tenant": one.tenant,
    }


def _fair_run(name: str, *, policy: Policy = DEFAULT_POLICY, policies: str | None = None, **workload: Any) -> dict[str, Any]:
    result, fleet = simulate(
        replica=FAIR_REPLICA,
        scheduler={**FAIR_SCHEDULER, "max_waiting": 10**6, "max_waiting_tokens": 10**9, "policies": policies},
        policy=policy,
        **workload,
    )
    light = merged(tally for (tenant, _, _), tally in fleet.ledger.tallies.items() if tenant in LIGHT)
    ttft = Percentiles.of(np.array(light.ttft))
    tenants = {
        tenant: {
            "received": service.received,
            "finished": service.finished,
            "ttft_p50_s": service.ttft.p50,
            "ttft_p99_s": service.ttft.p99,
            "output_tokens_per_s": service.output_tokens_per_s,
        }
        for tenant, service in result.tenants.items()
    }
    together = {"finished": light.finished, "received": light.received, "ttft_p50_s": ttft.p50, "ttft_p99_s": ttft.p99}
    return {"policy": name, "jain": result.jain, "light": together, "tenants": tenants, **figures(result)}


# Overload


SPIKE: dict[str, Any] = {
    "requests": 4000,
    "rate": 15.0,
    "arrivals": "spike",
    "spike_at_s": 30.0,
    "spike_for_s": 15.0,
    "slo": {"slo_ttft_ms": 1000.0},
}
SPIKE_SCHEDULER = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}


def overload() -> dict[str, Any]:
    """A spike of ten times the rate, with more and less patience in the queue; and then with clients that come back."""
    with tempfile.TemporaryDirectory() as folder:
        endless, short = Path(folder) / "endless.json", Path(folder) / "short.json"
        endless.write_text(json.dumps({"classes": {"interactive_paid": {"queue_timeout": None}}}))
        short.write_text(json.dumps({"classes": {"interactive_paid": {"queue_timeout": 1.0}}}))
        unbounded = {**SPIKE_SCHEDULER, "max_waiting": 10**6, "max_waiting_tokens": 10**9, "policies": str(endless)}
        bounded = {**SPIKE_SCHEDULER, "policies": str(short)}
        spike = [
            _overload_run("no shedding", scheduler=unbounded),
            _overload_run("30 s to start (default)", scheduler=SPIKE_SCHEDULER),
            _overload_run("1 s to start", scheduler=bounded),
        ]
        clients = {"retries": 20, "backoff_s": 0.5}
        storm = [
            _overload_run("come back when told", scheduler=bounded, **clients),
            _overload_run("come back after 0.2 s", scheduler=bounded, retry=Impatient(20, 0.2), **clients),
        ]
    return {"spike": spike, "storm": storm}


class Impatient(RetryPolicy):
    """Clients that do not listen: they come back after a fixed time, give or take a factor of two."""

    __slots__ = ()

    def wait(self, attempt: int, asked: float, random: Random) -> float:
        """The same before every retry."""
        return self.backoff * (1.0 + random.random())


def _overload_run(name: str, **settings: Any) -> dict[str, Any]:
    result = run(**SPIKE, **settings)
    series = {key: [round(value or 0.0, 2) for value in result.series[key]] for key in ("refusals", "finished", "good_tokens")}
    answered = {str(code): count for code, count in result.refusals.items()}
    kept = {"bin_s": result.bin_s, "series": series, "refusals": answered, "retries": result.retries}
    return {"policy": name, **figures(result), **kept}


# Swap against recompute


ALWAYS_SWAP = Policy(swap=lambda swap, recompute: True)


def swapping() -> dict[str, Any]:
    """Output tokens a second under memory pressure, by the speed of the link to the host."""
    settings: dict[str, Any] = {
        "requests": 500,
        "rate": 40.0,
        "classes": "batch=1",
        "prompt_tokens": 600,
        "output_tokens": 300,
        "scheduler": {"max_num_seqs": 64, "max_num_batched_tokens": 1024, "growth_reserve": 0.0},
    }
    memory = {"num_pages": 1500, "prefix_caching": False}
    runs: list[dict[str, Any]] = [{"policy": "recompute", "gbps": None, **figures(run(replica=memory, **settings))}]
    for gbps in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0):
        swap = {**memory, "swap_gib": 64.0, "swap_gbps": gbps}
        runs.append({"policy": "swap", "gbps": gbps, **figures(run(replica=swap, policy=ALWAYS_SWAP, **settings))})
        runs.append({"policy": "the cheaper", "gbps": gbps, **figures(run(replica=swap, **settings))})
    return {"runs": runs, "crossover_gbps": crossover_gbps(settings["scheduler"], memory)}


def crossover_gbps(scheduler: dict[str, Any], memory: dict[str, Any]) -> float:
    """The link at which moving a page out and back takes as long as computing its tokens in full steps."""
    spec = replica_spec(ReplicaConfig(**memory), SchedulerConfig(**scheduler))
    tokens = spec.limits.max_num_batched_tokens
    grid = spec.grid(spec.limits)
    whole = np.array([tokens], np.int64)
    seconds = CostModel(spec.layout, spec.calibration, grid).cost(whole, whole).total
    return float(2 * tokens * spec.layout.kv_token_bytes_device / seconds / 1e9)


COMPARISONS: dict[str, Callable[[], dict[str, Any]]] = {
    "batching": batching,
    "chunked_prefill": chunked_prefill,
    "victims": victims,
    "fairness": fairness,
    "overload": overload,
    "swapping": swapping,
}


def main() -> None:
    """Run the comparisons asked for and put them into the results file, beside those that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=COMPARISONS, default=list(COMPARISONS))
    names = parser.parse_args().only
    for name in names:
        start = time.perf_counter()
        result = COMPARISONS[name]()
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        found = {**kept, **machine.describe(), "command": "python -m benchmarks.comparisons", name: result}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
