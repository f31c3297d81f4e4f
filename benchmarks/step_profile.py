"""Step times of the real executor, for `python -m jaxserve.simulate --profile FILE`.

    python -m benchmarks.step_profile llama-150m --output profile.json [--max-num-seqs 16] [--max-num-batched-tokens 256]

The model is a checkpoint directory, "pico", or "llama-150m", the benchmarks' own. Flags are those of `jaxserve serve`. Shapes:
decodes of equal and of ragged lengths, chunks with and without a context before them, several prompts, and mixed steps. Every
shape is measured in every round, in an order that changes; a time is the median over rounds of a burst of steps submitted one
after another, as the engine does. The fit that the simulator makes of it is printed, with its error for every step.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import llama150m, machine
from benchmarks.plans import Shape, make_plan
from jaxserve.clock import RealClock
from jaxserve.config.fields import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from jaxserve.config.flags import add_flags
from jaxserve.engine.build import BuiltEngine, build_engine
from jaxserve.engine.core import EngineCore
from jaxserve.engine.preparation import model_directory
from jaxserve.executor.base import Capabilities, Executor, StepHandle
from jaxserve.metrics.turn import ExecutorCounts
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest
from jaxserve.simulation.calibrate import Fit, fit
from jaxserve.simulation.profile import read_profile
from jaxserve.step.plan import Ints, Plan, StepResult

BURST = 3  # steps submitted one after another
HOST_STEPS = 40
FORMATS = {"bfloat16": "bf16"}
KV_FORMATS = {**FORMATS, "float8_e4m3fn": "fp8", "int8": "int8"}


@contextmanager
def checkpoint(model: str) -> Iterator[dict[str, Any]]:
    """Settings for a model: "llama-150m" is a directory that is there for as long as this is entered."""
    if model != "llama-150m":
        yield {"model": model}
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield {"model": str(llama150m.write_config(Path(scratch) / model)), "load_format": "dummy"}


def shapes(limits: Capabilities, random: Random) -> list[Shape]:
    """What is measured: as many kinds of steps as the executor's limits allow."""
    rows, tokens, longest = limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len
    found: list[Shape] = []
    for count in _doubling(1, rows):
        found += [((1,) * count, (length,) * count) for length in (longest // 32, longest // 4, longest - 1)]
        found += [((1,) * count, _ragged(count, longest, random)) for _ in range(2)]
    for chunk in _doubling(16, tokens):
        found += [((chunk,), (before + chunk,)) for before in (0, longest // 4, longest // 2) if before + chunk <= longest]
        decodes = min(rows - 1, tokens - chunk)
        for others in {decodes, decodes // 3} - {0}:
            counts = (1,) * others + (chunk - others if chunk > 2 * others else chunk,)
            found.append((counts, (*_ragged(others, longest, random), counts[-1])))
    for prompts in (2, 4, 8):
        if prompts <= rows and tokens // prompts <= longest:
            found.append(((tokens // prompts,) * prompts, (tokens // prompts,) * prompts))
    usable = limits.num_pages - 1
    return [shape for shape in found if sum(-(-length // limits.page_size) for length in shape[1]) <= usable]


def _doubling(low: int, high: int) -> list[int]:
    values = [low * 2**power for power in range(32) if low * 2**power < high]
    return [*values, high]


def _ragged(count: int, longest: int, random: Random) -> tuple[int, ...]:
    """Lengths as traffic has them: a kernel that pads rows to the longest shows here."""
    return tuple(min(max(round(random.lognormvariate(np.log(longest / 6), 0.7)), 2), longest - 1) for _ in range(count))


def measure(executor: Executor, plans: list[Plan], rounds: int, random: Random) -> list[float]:
    """Median seconds of a step of each plan."""
    times: list[list[float]] = [[] for _ in plans]
    for _ in range(rounds + 1):
        order = list(range(len(plans)))
        random.shuffle(order)
        for number in order:
            start = time.perf_counter()
            handles = [executor.submit(plans[number]) for _ in range(BURST)]
            for handle in handles:
                handle.result()
            times[number].append((time.perf_counter() - start) / BURST)
    return [machine.median(values[1:]) for values in times]


class Waits:
    """An executor that counts the seconds spent waiting for it."""

    def __init__(self, executor: Executor) -> None:
        self.seconds = 0.0
        self._executor = executor

    def capabilities(self) -> Capabilities:
        """The executor's."""
        return self._executor.capabilities()

    def counts(self) -> ExecutorCounts:
        """The executor's."""
        return self._executor.counts()

    def submit(self, plan: Plan) -> StepHandle:
        """The executor's, its handle watched."""
        return _Watched(self, self._executor.submit(plan))


class _Watched:
    def __init__(self, waits: Waits, handle: StepHandle) -> None:
        self._waits = waits
        self._handle = handle

    def choose(self, masks: Ints | None) -> None:
        self._handle.choose(masks)

    def result(self) -> StepResult:
        """The step's; the wait is counted."""
        start = time.perf_counter()
        value = self._handle.result()
        self._waits.seconds += time.perf_counter() - start
        return value


def host_seconds(built: BuiltEngine) -> float:
    """Seconds a step that the engine's loop does not wait for the device, with half its rows decoding and no overlap."""
    scheduler, waits = built.core.scheduler, Waits(built.core.executor)
    core = EngineCore(scheduler, waits, overlap=False)
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    for number in range(max(waits.capabilities().max_num_seqs // 2, 1)):
        request = EngineRequest(f"host {number}", (1, 2, 3, 4), params, HOST_STEPS, 0, frozenset(), b"", built.clock.now())
        core.add([request])
    core.step()
    start, waited = time.perf_counter(), waits.seconds
    steps = 0
    while core.has_work:
        core.step()
        steps += 1
    return (time.perf_counter() - start - (waits.seconds - waited)) / steps


def profile(config: EngineConfig, built: BuiltEngine, name: str, hardware: str | None, rounds: int) -> dict[str, Any]:
    """Measure an engine that was built from `config`."""
    executor, random = built.core.executor, Random(0)
    limits, info = executor.capabilities(), built.report.model
    if info.dtype not in FORMATS or built.report.kv_dtype not in KV_FORMATS:
        known = f"weights in bfloat16 and KV in {', '.join(KV_FORMATS)}"
        raise SystemExit(f"the simulator knows {known}, not {info.dtype} and {built.report.kv_dtype}")
    facts = machine.describe()
    chosen = shapes(limits, random)
    plans = [make_plan(shape, limits.page_size, info.vocab_size) for shape in chosen]
    seconds = measure(executor, plans, rounds, random)
    return {
        **facts,
        "model_name": name,
        "model": read_hf_config(model_directory(config.model.model)),
        "tp": config.parallel.tensor_parallel_size,
        "weights": FORMATS[info.dtype],
        "kv_dtype": KV_FORMATS[built.report.kv_dtype],
        "hardware": hardware,
        "machine": f"{facts['cpu']}, {facts['cores']} cores" if facts["platform"] == "cpu" else built.report.mesh,
        "memory_bytes": machine.memory_bytes(),
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "min_rows": 2 if facts["platform"] == "cpu" else 1,
        "host_seconds": host_seconds(built),
        "steps": [
            {"counts": counts, "lengths": lengths, "seconds": value}
            for (counts, lengths), value in zip(chosen, seconds, strict=True)
        ],
    }


def summary(path: str) -> dict[str, Any]:
    """The factors fitted to a profile, for a results file."""
    found = fit(read_profile(path), path)
    return {
        "steps": len(found.steps),
        "fit_mean_error": found.mean_error,
        "gflops": found.hardware.bf16_tflops * 1e3,
        "gb_per_s": found.hardware.bandwidth_gb_s,
        "calibration": asdict(found.calibration),
    }


def table(found: Fit) -> Table:
    """Every step beside the fit."""
    shown = Table(title=f"mean error of the fit {found.mean_error:.1%}", title_justify="left")
    for column in ("rows", "tokens", "KV tokens", "measured ms", "fitted ms", "error"):
        shown.add_column(column, justify="right")
    for step in found.steps:
        counts = (str(step.rows), str(step.tokens), str(step.kv_tokens))
        shown.add_row(*counts, f"{1e3 * step.measured:.1f}", f"{1e3 * step.fitted:.1f}", f"{step.error:+.0%}")
    return shown


def main() -> None:
    """Measure, write, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, ModelConfig, CacheConfig, SchedulerConfig, ParallelConfig)
    parser.add_argument("--output", required=True, help="file to write")
    parser.add_argument("--hardware", help="the planner's name of the GPU, such as h200")
    parser.add_argument("--rounds", type=int, default=7, help="times that every shape is measured")
    settings = vars(parser.parse_args())
    output, hardware, rounds = (settings.pop(name) for name in ("output", "hardware", "rounds"))
    name = settings.pop("model")
    with checkpoint(name) as chosen:
        config = EngineConfig.from_settings(settings | chosen)
        built = build_engine(config, strict_length=False, clock=RealClock(), progress=lambda *_: None)
        measured = profile(config, built, name, hardware, rounds)
    measured["command"] = " ".join(["python -m benchmarks.step_profile", *sys.argv[1:]])
    Path(output).write_text(json.dumps(measured, indent=1) + "\n")
    found = fit(read_profile(output), output)
    Console().print(table(found))
    print(found.hardware, found.calibration, sep="\n")


if __name__ == "__main__":
    main()
