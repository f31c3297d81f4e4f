"""Host time of a step in the engine process and in a front end, with a device that takes no time.

    python -m benchmarks.host_loop [--rows 16 64 256 1024] [--steps 300]

In the engine process: schedule and plan, pad to the bucket, call a program of as many arrays as a model of 12 layers has, apply,
and write the message to the front end. In the front end: read the message, and tokens to text. Three loads: `decode` (all rows
decode), `waiting` (so they do, and 1,024 requests of 8 tenants wait), `mixed` (outputs end after 32 to 96 tokens and waiting
requests take their rows, so most steps also compute prompts). `decode` is measured with a longer `max_model_len`, too: page
tables are larger then, and rows as before. Prints medians in microseconds and writes benchmarks/results/host_loop.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from benchmarks import machine
from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.clock import RealClock
from jaxserve.commands import wide_console
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.config.speculative import SpeculativeConfig
from jaxserve.engine.budgets import Budgets
from jaxserve.engine.intake import Intake, IntakeLimits
from jaxserve.engine.link import EngineLoad
from jaxserve.engine.outputs import RequestOutputs
from jaxserve.engine.preparation import model_directory
from jaxserve.engine.remote.codec import encode
from jaxserve.engine.remote.messages import Turned, decode_from_engine
from jaxserve.engine.remote.server import deal
from jaxserve.executor.flat_params import FlatParams
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import Update
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.speculation.make import make_speculation
from jaxserve.step.batch import make_batch
from jaxserve.step.buckets import BucketGrid
from jaxserve.step.page_tables import PageTables, most_changes
from jaxserve.step.plan import Plan, StepResult
from jaxserve.tokenizer.load import load_tokenizer
from jaxserve.types import RequestOptions, ServiceClass

PROMPT, MAX_LEN, LONGER, PAGE_SIZE, VOCAB, WAITING, TENANTS = 128, 2048, 131072, 16, 500, 1024, 8
RESULTS = Path(__file__).parent / "results" / "host_loop.json"
WEIGHTS, STATE = 51, 7  # arrays of a model of 12 layers, and of what lives on the device
ENGINE = ("schedule", "batch", "dispatch", "apply", "send")
FRONT_END = ("receive", "outputs")
PHASES = (*ENGINE, *FRONT_END)
OWNER = b"front end"
LOADS = ("decode", "waiting", "mixed")


@dataclass
class Loop:
    """An engine's host side with `rows` sequences that run."""

    rows: int
    load: str
    max_model_len: int = MAX_LEN
    seconds: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    batch_bytes: int = 0  # of the latest step

    def __post_init__(self) -> None:
        self.clock = RealClock()
        self.tokenizer = load_tokenizer(model_directory("pico"))
        cache = KVCache(self.rows * MAX_LEN // PAGE_SIZE + 1, PAGE_SIZE, prefix_caching=True)
        config = SchedulerConfig(
            max_num_seqs=self.rows, max_num_batched_tokens=max(self.rows * PROMPT, 512), max_waiting=2 * WAITING + self.rows
        )
        limits = IntakeLimits(
            max_model_len=self.max_model_len, vocab_size=VOCAB, eos_token_ids=frozenset(), max_sequences=1, seed=0, strict=True
        )
        budgets = Budgets(Policies(), ServiceClass.BATCH, num_pages=cache.num_usable, page_size=PAGE_SIZE)
        self.intake = Intake(self.tokenizer, limits, CacheNamespace("benchmark", "bfloat16", ""), budgets)
        asked = self.asked()
        self.scheduler = Scheduler(
            config, cache, self.max_model_len, self.clock, speculation=make_speculation(asked, config, self.clock)
        )
        self.grid = BucketGrid.make(max_rows=self.rows, max_tokens=config.max_num_batched_tokens, min_rows=2)
        if asked is not None:
            self.grid = self.grid.with_drafts(asked.num_speculative_tokens)
        self.outputs: dict[str, RequestOutputs] = {}
        self.params = FlatParams.of({str(number): jnp.zeros(1) for number in range(WEIGHTS)})
        self.state = [jnp.zeros(1) for _ in range(STATE)]
        self.program = jax.jit(lambda params, state, batch: (state, batch.words[:1]), donate_argnums=1, keep_unused=True)
        self.table_shape = 1, self.rows + 1, self.max_model_len // PAGE_SIZE
        self.tables = PageTables(self.rows, 1, self.max_model_len // PAGE_SIZE)
        self.owners: dict[str, bytes] = {}
        self.rng = np.random.default_rng(0)
        self.count = 0
        for _ in range(self.rows):
            self.add()
        self.step()  # all prompts
        if self.load in ("waiting", "mixed"):
            for _ in range(WAITING):
                self.add()
        for times in self.seconds.values():
            times.clear()

    def now(self) -> float:
        """What phases are timed with."""
        return time.perf_counter()

    def asked(self) -> SpeculativeConfig | None:
        """Who guesses tokens; None for nobody."""
        return None

    def apply(self, plan: Plan, seconds: float) -> list[Update]:
        """Take in a step of so many seconds, whose tokens are drawn."""
        drawn = self.rng.integers(3, VOCAB, self.rows).astype(np.int32)
        return self.scheduler.apply(plan, StepResult.of_rows(plan, drawn[: plan.num_rows]), seconds)

    def add(self) -> None:
        """One more request."""
        tokens = int(self.rng.integers(32, 96)) if self.load == "mixed" else None
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        prompt = self.rng.integers(3, VOCAB, PROMPT).tolist()
        name, tenant = str(self.count), f"tenant-{self.count % TENANTS}"
        self.count += 1
        requests = self.intake.prepare(
            {"prompt_token_ids": prompt}, params, name, self.clock.now(), RequestOptions(tenant=tenant)
        )
        self.scheduler.add(requests)
        self.outputs[requests[0].id] = RequestOutputs(name, requests, self.tokenizer, self.clock)
        self.owners[requests[0].id] = OWNER

    def step(self) -> None:
        """One step; its phases are timed."""
        marks = [self.now()]
        plan = self.scheduler.schedule()
        assert plan is not None
        marks.append(self.now())
        drafts = int(plan.num_drafts.max(initial=0))
        bucket = self.grid.choose(plan.num_tokens, plan.num_rows, plan.longest_row, drafts=drafts)
        changes = self.tables.changes(plan, most_changes(bucket.tokens, bucket.rows, 1, PAGE_SIZE))
        batch = make_batch(plan, bucket, changes, table_shape=self.table_shape, page_size=PAGE_SIZE)
        self.batch_bytes = batch.words.nbytes
        marks.append(self.now())
        self.state, packed = self.program(self.params, self.state, batch)
        np.asarray(packed)
        marks.append(self.now())
        updates = self.apply(plan, marks[-1] - marks[0])
        marks.append(self.now())
        shares, _ = deal(updates, self.owners)
        content = encode(Turned(marks[-1], EngineLoad(), shares[OWNER].updates))
        marks.append(self.now())
        message = decode_from_engine(content)
        assert isinstance(message, Turned)
        marks.append(self.now())
        for update in message.updates:
            self.outputs[update.id].push(update)
        marks.append(self.now())
        for phase, start, end in zip(PHASES, marks, marks[1:], strict=False):
            self.seconds[phase].append(end - start)
        for update in updates:
            if update.finish_reason is not None:
                del self.outputs[update.id], self.owners[update.id]
                self.add()


def measure(rows: int, load: str, steps: int) -> dict[str, float]:
    """Median microseconds of each phase, of all in the engine process, and of all."""
    return medians_of(Loop(rows, load), steps)


def medians_of(loop: Loop, steps: int) -> dict[str, float]:
    """The same of a loop that is there."""
    for _ in range(steps):
        loop.step()
    medians = {phase: machine.median(times) * 1e6 for phase, times in loop.seconds.items()}
    for name, phases in (("engine", ENGINE), ("all", PHASES)):
        sums = map(sum, zip(*(loop.seconds[phase] for phase in phases), strict=True))
        medians[name] = machine.median(list(sums)) * 1e6
    return medians


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    report: dict[str, Any] = {**machine.describe(), "command": " ".join(["python -m benchmarks.host_loop", *sys.argv[1:]])}
    report["median_microseconds"] = {load: {} for load in LOADS}
    shown = Table(title="host time of a step, median microseconds", title_justify="left")
    for column in ("load", "rows", *PHASES, "engine", "all"):
        shown.add_column(column, justify="right")
    for load in LOADS:
        for rows in arguments.rows:
            medians = measure(rows, load, arguments.steps)
            report["median_microseconds"][load][rows] = {name: round(value, 1) for name, value in medians.items()}
            shown.add_row(load, str(rows), *(f"{value:.0f}" for value in medians.values()))
    report["decode_with_max_model_len"] = {}
    for length in (MAX_LEN, LONGER):
        loop = Loop(max(arguments.rows), "decode", length)
        found = {"microseconds": round(medians_of(loop, arguments.steps)["engine"], 1), "batch_bytes": loop.batch_bytes}
        report["decode_with_max_model_len"][length] = {"rows": loop.rows, **found}
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    wide_console(120).print(shown)


if __name__ == "__main__":
    main()
