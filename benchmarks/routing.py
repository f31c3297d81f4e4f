"""What routers cost and what they are worth: the figures of docs/routing.md.

    python -m benchmarks.routing [--requests 3000] [--choices 20000]

Cost: processor time of `choose` and of `ended`, for requests of 32 tenants whose shares are Zipf's, four system prompts
each, with 1,000 replicas and 4,000 requests in flight. Worth: the same tenants on 8 simulated replicas of an H100, with all of
its memory for the cache and with caches that hold a quarter of the system prompts. Writes benchmarks/results/routing.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np
from rich.table import Table

from benchmarks import machine
from jaxserve.cache.prefix_hash import page_hash
from jaxserve.commands import wide_console
from jaxserve.config.fields import SchedulerConfig
from jaxserve.routing.make import RouterName, make_router
from jaxserve.routing.router import ReplicaLoad, RoutingRequest
from jaxserve.simulation.report import report
from jaxserve.simulation.scenario import Scenario, simulate
from jaxserve.simulation.settings import ReplicaConfig
from jaxserve.types import ServiceClass
from jaxserve.workload.settings import SloConfig, WorkloadConfig

RESULTS = Path(__file__).parent / "results" / "routing.json"
REPLICAS, IN_FLIGHT = 1000, 4000
TENANTS, PREFIXES, PREFIX_TOKENS = 32, 4, 4096
PAGE_SIZE, PROMPT_TOKENS, OUTPUT_TOKENS = 16, 256, 64
SHARES = {f"t{rank}": 1.0 / rank for rank in range(1, TENANTS + 1)}
RATE = 60.0  # a second, of requests
CACHES = {"all of an H100": None, "a quarter of the prompts": TENANTS * PREFIXES * PREFIX_TOKENS // PAGE_SIZE // 4}


def requests(count: int) -> list[RoutingRequest]:
    """Prompts as front ends describe them; a page's hash stands for its tokens."""
    random = Random(0)
    prefixes = {
        (tenant, number): _pages(f"{tenant} {number}".encode(), PREFIX_TOKENS // PAGE_SIZE, number)
        for tenant in SHARES
        for number in range(PREFIXES)
    }
    tenants = random.choices(list(SHARES), list(SHARES.values()), k=count)
    return [
        RoutingRequest(
            id=str(number),
            pages=_prompt(prefixes[tenant, random.randrange(PREFIXES)], number),
            page_size=PAGE_SIZE,
            tokens=PREFIX_TOKENS + PROMPT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            tenant=tenant,
            service_class=random.choice(tuple(ServiceClass)),
        )
        for number, tenant in enumerate(tenants)
    ]


def _prompt(prefix: tuple[bytes, ...], number: int) -> tuple[bytes, ...]:
    return prefix + _pages(prefix[-1], PROMPT_TOKENS // PAGE_SIZE, number)


def _pages(root: bytes, count: int, content: int) -> tuple[bytes, ...]:
    return tuple(accumulate([[content + 1]] * count, page_hash, initial=root))[1:]


def cost(name: RouterName, asked: Sequence[RoutingRequest]) -> dict[str, Any]:
    """Microseconds of processor time of calls, once as many requests are in flight as ever are."""
    router = make_router(name)
    for number in range(REPLICAS):
        router.join(f"replica {number}")
        router.observe(f"replica {number}", ReplicaLoad(pages_total=2**15), 0.0)
    running: deque[str] = deque()
    choose, end = [], []
    for number, request in enumerate(asked):
        now = number / (RATE * REPLICAS / 8)  # as busy as the simulated ones
        start = time.thread_time()
        router.choose(request, now)
        chosen = time.thread_time()
        running.append(request.id)
        if len(running) > IN_FLIGHT:
            ending = time.thread_time()
            router.ended(running.popleft(), now)
            end.append(time.thread_time() - ending)
            choose.append(chosen - start)
    return {"router": name, "choose_us": _microseconds(choose), "ended_us": _microseconds(end)}


def _microseconds(seconds: Sequence[float]) -> dict[str, float]:
    values = np.array(seconds) * 1e6
    return {
        "mean": round(float(values.mean()), 1),
        **{f"p{share}": round(float(np.percentile(values, share)), 1) for share in (50, 99)},
    }


def worth(name: RouterName, cache: str, count: int) -> dict[str, Any]:
    """What 8 replicas make of it."""
    scenario = Scenario(
        replica=ReplicaConfig(replicas=8, router=name, num_pages=CACHES[cache]),
        scheduler=SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=2048),
        workload=WorkloadConfig(
            requests=count,
            rate=RATE,
            tenants=",".join(f"{tenant}={share}" for tenant, share in SHARES.items()),
            prefixes=PREFIXES,
            prefix_tokens=PREFIX_TOKENS,
            prompt_tokens=PROMPT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
        ),
        slo=SloConfig(),
    )
    result = report(scenario, simulate(scenario))
    return {
        "router": name,
        "cache": cache,
        "finished": result.all.finished,
        "prefix_hit_rate": round(result.engines.prefix_hit_rate, 4),
        "tokens_computed": result.engines.tokens,
        "ttft_ms": {share: round(1e3 * getattr(result.all.ttft, share), 1) for share in ("p50", "p99")},
        "most_over_mean": {"requests": round(result.balance.requests, 3), "tokens": round(result.balance.tokens, 3)},
    }


def show(results: dict[str, Any]) -> None:
    costs = Table("router", "choose: mean", "p99", "ended: mean", title=f"Microseconds with {REPLICAS:,} replicas")
    for row in results["cost"]:
        costs.add_row(row["router"], *(f"{value:.1f}" for value in (*_mean_and_worst(row), row["ended_us"]["mean"])))
    worths = Table("cache", "router", "hit rate", "tokens", "TTFT p50 ms", "p99", "most / mean requests", "tokens")
    for row in results["worth"]:
        times, most = row["ttft_ms"], row["most_over_mean"]
        worths.add_row(
            row["cache"],
            row["router"],
            f"{row['prefix_hit_rate']:.1%}",
            f"{row['tokens_computed']:,}",
            *(f"{value:,.0f}" for value in times.values()),
            *(f"{value:.2f}" for value in most.values()),
        )
    wide_console(120).print(costs, worths)


def _mean_and_worst(row: dict[str, Any]) -> tuple[float, float]:
    return row["choose_us"]["mean"], row["choose_us"]["p99"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=3000, help="of each simulation")
    parser.add_argument("--choices", type=int, default=20000, help="that are timed, of each router")
    args = parser.parse_args()
    names = get_args(RouterName)
    asked = requests(args.choices + IN_FLIGHT)
    results = {
        **machine.describe(),
        "command": machine.command("benchmarks.routing"),
        "cost": [cost(name, asked) for name in names],
        "worth": [worth(name, cache, args.requests) for cache in CACHES for name in names],
    }
    show(results)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
