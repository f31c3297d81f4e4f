"""Preemption by swapping against recomputing on the 150M model: what each costs, and whether the scheduler takes the cheaper.

    python -m benchmarks.swap [--tokens 256 768 1536] [--rounds 3]

For each length of context: an executor moves that many tokens' pages to host memory and back, and computes as many tokens in full
steps, alone. Then two requests of that length run in a cache that is too small for both outputs, so that one is preempted:
always swapped, always computed again, and as the scheduler chooses. Prints medians, and the crossover: the seconds a page may
take to move, one way, for both to cost the same, as measured and as the scheduler reckons. Writes benchmarks/results/swap.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks import llama150m, machine
from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.swap import SwapSpace
from jaxserve.clock import RealClock
from jaxserve.commands import wide_console
from jaxserve.config.fields import EngineConfig, SchedulerConfig
from jaxserve.engine.build import BuiltEngine, build_engine
from jaxserve.engine.core import EngineCore
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.preemption import Preemption
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.scheduler.step_budget import StepBudget
from jaxserve.step.example import example_plan
from jaxserve.step.plan import MoveKind, PageMove, Plan
from jaxserve.types import RequestOptions

PAGE, CHUNK, ROWS, OUTPUT, LONGEST = 16, 512, 2, 48, 2048
RESULTS = Path(__file__).parent / "results" / "swap.json"
WAYS = ("swap", "recompute", "scheduler")


def build(directory: Path) -> BuiltEngine:
    """The model, with a swap space for two of the longest sequences."""
    settings = {"model": str(directory), "load_format": "dummy", "page_size": PAGE, "num_pages": 2 * LONGEST // PAGE + 1}
    limits = {"max_num_seqs": ROWS, "max_num_batched_tokens": CHUNK, "before_ready": "first", "swap_space": 0.25}
    config = EngineConfig.from_settings({**settings, **limits})
    return build_engine(config, strict_length=True, clock=RealClock(), progress=lambda what, done, total: None)


class Costs:
    """What an executor takes for plans by hand; `budget` learns of them as a scheduler's does."""

    def __init__(self, built: BuiltEngine) -> None:
        self.executor = built.core.executor
        self.budget = StepBudget(CHUNK, ROWS, 0.0)
        self.page_seconds = self.executor.capabilities().swap_page_seconds

    def run(self, plan: Plan) -> float:
        """Seconds of a step."""
        start = time.perf_counter()
        self.executor.submit(plan).result()
        seconds = time.perf_counter() - start
        self.budget.observe(plan.num_rows, plan.num_tokens, seconds)
        return seconds

    def recompute(self, tokens: int) -> float:
        """Seconds to compute so many tokens in full steps."""
        pages, drawn = range(1, tokens // PAGE + 1), np.random.default_rng(0).integers(3, 32000, tokens)
        return sum(
            self.run(example_plan((drawn[start : start + CHUNK].tolist(), min(start + CHUNK, tokens), pages)))
            for start in range(0, tokens, CHUNK)
        )

    def swap(self, tokens: int) -> float:
        """Seconds that two decodes take longer if their tokens' pages go out before one and come back before the other."""
        pages = range(1, tokens // PAGE + 1)
        row = ([5], tokens, pages)
        out = tuple(PageMove(MoveKind.TO_TIER, page, page) for page in pages)
        back = tuple(PageMove(MoveKind.FROM_TIER, page, page) for page in pages)
        alone = [self.run(example_plan(row)) for _ in range(2)]
        return self.run(example_plan(row, moves=out)) + self.run(example_plan(row, moves=back)) - sum(alone)


def preempting(built: BuiltEngine, tokens: int, swap: SwapSpace | None) -> tuple[float, list[Preemption]]:
    """Seconds of two requests whose outputs do not fit beside each other, and who was preempted."""
    limits, clock = built.core.executor.capabilities(), RealClock()
    cache = KVCache(2 * tokens // PAGE + 3, PAGE, prefix_caching=False)
    config = SchedulerConfig(
        max_num_seqs=ROWS,
        max_num_batched_tokens=CHUNK,
        growth_reserve=0.0,
        low_watermark=0.0,
        high_watermark=0.0,
        itl_target_ms=0.0,
    )
    events: list[Preemption] = []
    scheduler = Scheduler(config, cache, limits.max_model_len, clock, swap=swap, on_preemption=events.append)
    core = EngineCore(scheduler, built.core.executor, overlap=True)
    rng = np.random.default_rng(1)
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    for name in ("a", "b"):
        ids = rng.integers(3, 32000, tokens).tolist()
        core.add(built.intake.prepare({"prompt_token_ids": ids}, params, name, clock.now(), RequestOptions()))
    start = time.perf_counter()
    while core.has_work:
        core.step()
    return time.perf_counter() - start, events


def measure(built: BuiltEngine, tokens: int, rounds: int) -> dict[str, Any]:
    """Medians at one length of context."""
    costs, pages, slots = Costs(built), tokens // PAGE, built.core.executor.capabilities().swap_slots
    spaces = {"swap": 0.0, "recompute": None, "scheduler": costs.page_seconds}
    seconds: dict[str, list[float]] = {name: [] for name in ("move", "compute", *WAYS)}
    swapped: list[bool] = []
    for turn in range(rounds + 1):
        taken = {"move": costs.swap(tokens), "compute": costs.recompute(tokens)}
        for way, page_seconds in spaces.items():
            space = None if page_seconds is None else SwapSpace(slots, page_seconds)
            taken[way], events = preempting(built, tokens, space)
            assert events, "nobody was preempted"
            if way == "scheduler" and turn:
                swapped += [event.swapped for event in events]
        if turn:  # the first warms up
            for name, value in taken.items():
                seconds[name].append(value)
    found = {name: machine.median(values) for name, values in seconds.items()}
    reckoned = costs.budget.prefill_seconds(tokens)
    return {
        "tokens": tokens,
        "seconds": found,
        "reckoned": {"move": 2 * pages * costs.page_seconds, "compute": reckoned},
        "crossover_page_us": {"measured": 1e6 * found["compute"] / (2 * pages), "scheduler": 1e6 * reckoned / (2 * pages)},
        "page_us": {"measured": 1e6 * found["move"] / (2 * pages), "scheduler": 1e6 * costs.page_seconds},
        "cheaper": "swap" if found["move"] < found["compute"] else "recompute",
        "scheduler_swapped": sum(swapped) / len(swapped),
    }


def main() -> None:
    """Run, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 768, 1536], help=f"multiples of {PAGE}")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.swap"), "lengths": []}
    titles = (
        "context",
        "move",
        "compute",
        *WAYS,
        "page us",
        "crossover us",
        "its page us",
        "its crossover us",
        "cheaper",
        "swaps",
    )
    shown = Table(title="preemption: milliseconds, and microseconds a page", title_justify="left")
    for title in titles:
        shown.add_column(title, justify="right")
    with tempfile.TemporaryDirectory() as directory:
        built = build(llama150m.write_config(Path(directory)))
        for tokens in arguments.tokens:
            found = measure(built, tokens, arguments.rounds)
            report["lengths"].append(found)
            pages = [found[name][by] for by in ("measured", "scheduler") for name in ("page_us", "crossover_page_us")]
            shown.add_row(
                str(tokens),
                *(f"{1e3 * value:.1f}" for value in found["seconds"].values()),
                *(f"{value:.0f}" for value in pages),
                found["cheaper"],
                f"{found['scheduler_swapped']:.0%}",
            )
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    wide_console(140).print(shown)


if __name__ == "__main__":
    main()
