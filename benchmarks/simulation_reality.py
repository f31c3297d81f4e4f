"""The simulator against the engine: calibrated with one set of steps, it predicts another workload.

    python -m benchmarks.simulation_reality [--requests 100] [--rates 0.6 0.9 1.2]

For every rate, requests with Poisson arrivals, log-normal lengths and shared prefixes go through the real engine thread by the
machine's clock, and through the simulator with the same arrivals, lengths and prefixes. The simulator's factors are fitted to
steps measured before and after, as `benchmarks.step_profile` does, for a machine's speed drifts; they are written to
benchmarks/results/step_profile.json. Steps are not paced: otherwise what runs in a step would follow from the noise of the
measured ones. Writes benchmarks/results/simulation_reality.json and prints a table. The machine must have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import machine, step_profile
from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig, SchedulerConfig
from jaxserve.engine.build import BuiltEngine, build_engine
from jaxserve.engine.loop import EngineLoop, Refusal, TurnOutcome
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest
from jaxserve.simulation.scenario import Scenario, simulate
from jaxserve.simulation.settings import ReplicaConfig
from jaxserve.types import ServiceClass
from jaxserve.workload.generate import generate
from jaxserve.workload.requests import WorkloadRequest
from jaxserve.workload.settings import WorkloadConfig

RESULTS = Path(__file__).parent / "results" / "simulation_reality.json"
PROFILE = RESULTS.with_name("step_profile.json")
MODEL = "llama-150m"
MAX_LEN, VOCABULARY = 1024, 32000
LIMITS: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 256, "itl_target_ms": 0.0}
SCHEDULER = SchedulerConfig(**LIMITS)
LENGTHS: dict[str, Any] = {
    "prompt_tokens": 96,
    "prompt_sigma": 0.8,
    "output_tokens": 48,
    "output_sigma": 0.6,
    "prefixes": 4,
    "prefix_tokens": 64,
}
PARAMS = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass(slots=True)
class Times:
    """When a request arrived and when its tokens came, seconds of one clock."""

    arrival: float
    tokens: list[float] = field(default_factory=list)


class Engine:
    """The real engine thread, and what came out of it."""

    def __init__(self, built: BuiltEngine) -> None:
        self.clock = built.clock
        self.times: dict[str, Times] = {}
        self._unfinished: set[str] = set()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._loop = EngineLoop(built.core, self._sink, self._done.put)
        self._loop.start()

    def run(self, requests: list[WorkloadRequest], seed: int) -> list[Times]:
        """Send the requests when they are due; returns once all have ended."""
        self.times.clear()
        self._unfinished = {str(request.number) for request in requests}
        prompts = [prompt(request, seed) for request in requests]
        start = self.clock.now() + 0.1
        for request, tokens in zip(requests, prompts, strict=True):
            time.sleep(max(start + request.arrival - self.clock.now(), 0.0))
            name, now = str(request.number), self.clock.now()
            self.times[name] = Times(now)
            self._loop.add([EngineRequest(name, tokens, PARAMS, request.output_tokens, 0, frozenset(), b"%d" % seed, now)])
        error = self._done.get()
        if error is not None:
            raise error
        return list(self.times.values())

    def stop(self) -> None:
        """End the thread."""
        self._loop.stop()

    def _sink(self, outcomes: list[TurnOutcome]) -> None:
        now = self.clock.now()
        for outcome in outcomes:
            if isinstance(outcome, Refusal):
                self._done.put(outcome.error)
                return
            if outcome.error is not None:
                self._done.put(outcome.error)
                return
            if outcome.token is not None:
                self.times[outcome.id].tokens.append(now)
            if outcome.finish_reason is not None:
                self._unfinished.discard(outcome.id)
        if not self._unfinished:
            self._done.put(None)


def prompt(request: WorkloadRequest, seed: int) -> tuple[int, ...]:
    """Random tokens with the request's shared prefix."""
    shared = np.random.default_rng((1, request.prefix or 0, seed)).integers(3, VOCABULARY, request.prefix_tokens)
    own = np.random.default_rng((2, request.number, seed)).integers(3, VOCABULARY, request.prompt_tokens - len(shared))
    return (*shared.tolist(), *own.tolist())


def figures(times: list[Times]) -> dict[str, float]:
    """Throughput and latencies of a run."""
    first = [one.tokens[0] - one.arrival for one in times]
    gaps = np.concatenate([np.diff(one.tokens) for one in times])
    seconds = max(one.tokens[-1] for one in times) - min(one.arrival for one in times)
    return {
        "output_tokens_per_s": sum(len(one.tokens) for one in times) / seconds,
        "ttft_p50_s": float(np.percentile(first, 50, method="inverted_cdf")),
        "ttft_p90_s": float(np.percentile(first, 90, method="inverted_cdf")),
        "itl_mean_s": float(gaps.mean()),
    }


def workload(rate: float, requests: int, seed: int) -> WorkloadConfig:
    """What is asked of the engine and of the simulator."""
    return WorkloadConfig(requests=requests, rate=rate, seed=seed, **LENGTHS)


def requests_of(config: WorkloadConfig) -> list[WorkloadRequest]:
    """Its requests."""
    return list(generate(config, MAX_LEN, ServiceClass.INTERACTIVE_PAID))


def measure(built: BuiltEngine, rates: list[float], requests: int) -> list[dict[str, float]]:
    """The engine's figures at every rate."""
    engine = Engine(built)
    found = []
    for seed, rate in enumerate(rates):
        found.append(figures(engine.run(requests_of(workload(rate, requests, seed)), seed)))
        print(f"{rate:g} requests a second: {found[-1]}", flush=True)
    engine.stop()
    return found


def predicted(directory: str, config: WorkloadConfig, built: BuiltEngine) -> dict[str, float]:
    """What the simulator says of the same workload."""
    num_pages = built.core.executor.capabilities().num_pages
    replica = ReplicaConfig(model=directory, profile=str(PROFILE), num_pages=num_pages, max_model_len=MAX_LEN)
    fleet = simulate(Scenario(replica=replica, scheduler=SCHEDULER, workload=config))
    total = fleet.ledger.total()
    started = min(request.arrival for request in requests_of(config))
    return {
        "output_tokens_per_s": total.output_tokens / (fleet.ledger.ended - started),
        "ttft_p50_s": float(np.percentile(total.ttft, 50, method="inverted_cdf")),
        "ttft_p90_s": float(np.percentile(total.ttft, 90, method="inverted_cdf")),
        "itl_mean_s": total.itl.percentiles().mean,
    }


def main() -> None:
    """Calibrate, run, predict, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.6, 0.9, 1.2], help="requests a second")
    parser.add_argument("--rounds", type=int, default=4, help="of each of the two measurements of steps")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        **machine.describe(),
        "command": " ".join(["python -m benchmarks.simulation_reality", *sys.argv[1:]]),
        "model": "Llama 150M, dummy weights, bfloat16",
        "requests": arguments.requests,
        "workload": LENGTHS,
        "runs": [],
    }
    with step_profile.checkpoint(MODEL) as settings:
        config = EngineConfig.from_settings({**settings, **LIMITS, "max_model_len": MAX_LEN})
        built = build_engine(config, strict_length=True, clock=RealClock(), progress=lambda *_: None)
        profile = step_profile.profile(config, built, MODEL, None, arguments.rounds)
        measured = measure(built, arguments.rates, arguments.requests)
        again = step_profile.profile(config, built, MODEL, None, arguments.rounds)
        PROFILE.write_text(json.dumps({**profile, "steps": [*profile["steps"], *again["steps"]]}) + "\n")
        report |= step_profile.summary(str(PROFILE))
        for seed, rate in enumerate(arguments.rates):
            said = predicted(settings["model"], workload(rate, arguments.requests, seed), built)
            report["runs"].append({"rate": rate, "measured": measured[seed], "predicted": said})
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    Console().print(table(report["runs"]))


def table(runs: list[dict[str, Any]]) -> Table:
    """Measured, predicted and the difference."""
    shown = Table(title="simulator against engine", title_justify="left")
    for column in ("rate", "figure", "engine", "simulator", "difference"):
        shown.add_column(column, justify="right")
    for run in runs:
        for name, value in run["measured"].items():
            said = run["predicted"][name]
            shown.add_row(f"{run['rate']:g}", name, f"{value:.4g}", f"{said:.4g}", f"{said / value - 1:+.1%}")
    return shown


if __name__ == "__main__":
    main()
