"""Host time of a decode step: schedule, plan, pad to the bucket, apply, and tokens to text, with a device that takes no time.

    python -m benchmarks.host_loop [--rows 16 64 256] [--steps 300]

Writes benchmarks/results/host_loop.json and prints a table of medians in microseconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.clock import RealClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.engine.budgets import Budgets
from jaxserve.engine.build import model_directory
from jaxserve.engine.intake import Intake, IntakeLimits
from jaxserve.engine.outputs import RequestOutputs
from jaxserve.executor.batch import make_batch
from jaxserve.executor.buckets import BucketGrid
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.plan import StepResult
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.tokenizer.load import load_tokenizer
from jaxserve.types import ServiceClass

PROMPT, MAX_LEN, PAGE_SIZE, VOCAB = 128, 1024, 16, 500
RESULTS = Path(__file__).parent / "results" / "host_loop.json"
PHASES = ("schedule", "batch", "apply", "outputs")


@dataclass
class Loop:
    """An engine's host side with `rows` sequences that decode."""

    rows: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})

    def __post_init__(self) -> None:
        clock = RealClock()
        tokenizer = load_tokenizer(model_directory("pico"))
        cache = KVCache(self.rows * MAX_LEN // PAGE_SIZE + 1, PAGE_SIZE, prefix_caching=True)
        config = SchedulerConfig(max_num_seqs=self.rows, max_num_batched_tokens=max(self.rows * PROMPT, 512))
        limits = IntakeLimits(
            max_model_len=MAX_LEN, vocab_size=VOCAB, eos_token_ids=frozenset(), max_sequences=1, seed=0, strict=True
        )
        budgets = Budgets(Policies(), ServiceClass.BATCH, num_pages=cache.num_usable, page_size=PAGE_SIZE)
        intake = Intake(tokenizer, limits, CacheNamespace("benchmark", "bfloat16", ""), budgets)
        self.scheduler = Scheduler(config, cache, MAX_LEN, clock)
        self.grid = BucketGrid.make(max_rows=self.rows, max_tokens=config.max_num_batched_tokens, min_rows=2)
        self.outputs: dict[str, RequestOutputs] = {}
        self.rng = np.random.default_rng(0)
        params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        for index in range(self.rows):
            prompt = self.rng.integers(3, VOCAB, PROMPT).tolist()
            requests = intake.prepare({"prompt_token_ids": prompt}, params, str(index), clock.now())
            self.scheduler.add(requests)
            self.outputs[requests[0].id] = RequestOutputs(str(index), requests, tokenizer, clock)

    def step(self) -> None:
        """One step; its phases are timed."""
        marks = [time.perf_counter()]
        plan = self.scheduler.schedule()
        assert plan is not None
        marks.append(time.perf_counter())
        bucket = self.grid.choose(plan.num_tokens, plan.num_rows)
        make_batch(plan, bucket, max_pages=MAX_LEN // PAGE_SIZE, page_size=PAGE_SIZE, spare_slot=self.rows)
        marks.append(time.perf_counter())
        tokens = self.rng.integers(3, VOCAB, plan.num_rows).astype(np.int32)
        marks[-1:] = [time.perf_counter()]
        updates = self.scheduler.apply(plan, StepResult(plan.step, tokens))
        marks.append(time.perf_counter())
        for update in updates:
            self.outputs[update.id].push(update)
        marks.append(time.perf_counter())
        for phase, start, end in zip(PHASES, marks, marks[1:], strict=False):
            self.seconds[phase].append(end - start)


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    report: dict[str, Any] = {**machine.describe(), "command": " ".join(["python -m benchmarks.host_loop", *sys.argv[1:]])}
    report["median_microseconds"] = {}
    shown = Table(title="host time of a decode step, median microseconds", title_justify="left")
    for column in ("rows", *PHASES, "all"):
        shown.add_column(column, justify="right")
    for rows in arguments.rows:
        loop = Loop(rows)
        loop.step()  # the prefill
        for times in loop.seconds.values():
            times.clear()
        for _ in range(arguments.steps):
            loop.step()
        medians = {phase: machine.median(times) * 1e6 for phase, times in loop.seconds.items()}
        medians["all"] = machine.median([sum(parts) for parts in zip(*loop.seconds.values(), strict=True)]) * 1e6
        report["median_microseconds"][rows] = medians
        shown.add_row(str(rows), *(f"{value:.0f}" for value in medians.values()))
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    Console().print(shown)


if __name__ == "__main__":
    main()
