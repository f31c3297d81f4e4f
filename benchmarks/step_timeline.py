"""Where the milliseconds of a step go, op by op, and what the machine allows: decode of 1 to 32 rows, prefill, mixed.

    python -m benchmarks.step_timeline [--output benchmarks/results/step_timeline.json] [--steps 10]

The model is the benchmarks' own (150M, bfloat16, random weights), in this process. Every step is timed alone and in a burst
without a profiler, and then recorded with jax's, which says when each op of the program ran on which thread. A moment at which
several threads run ops is shared among those; one at which none does is "nothing": dispatch, and threads that wait. The parts are
scaled to the time without the profiler, which costs some itself. The bound is the larger of bytes over bandwidth and operations
over rate, both the best that is measured here: of XLA's own products and sums and of the native kernels. Writes JSON, and a
picture beside it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks import llama150m, machine
from benchmarks import matmul as products
from benchmarks.plans import Shape, make_plan
from jaxserve.aot.hlo import Instruction, Module
from jaxserve.clock import RealClock
from jaxserve.commands import write_json
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import build_engine
from jaxserve.executor.local import LocalExecutor
from jaxserve.sampling.options import STANDARD
from jaxserve.step.plan import Plan
from pallas_kernels import native

RESULTS = Path(__file__).parent / "results" / "step_timeline.json"
SETTINGS = {"load_format": "dummy", "dtype": "bfloat16", "max_model_len": 2048, "max_num_seqs": 32, "max_num_batched_tokens": 512}
BURST = 3
SHAPES: dict[str, Shape] = {
    **{f"decode, {rows} {'rows' if rows > 1 else 'row'}": ((1,) * rows, (256,) * rows) for rows in (1, 8, 16, 32)},
    "16 rows at 1,024": ((1,) * 16, (1024,) * 16),
    "prefill 512": ((512,), (512,)),
    "15 rows and 240 of a prompt": ((1,) * 15 + (240,), (256,) * 15 + (240,)),
}
NOTHING, OTHER = "nothing", "small ops"
COLOURS = {
    "projections": "#0072B2",
    "head": "#56B4E9",
    "attention": "#D55E00",
    "KV write": "#E69F00",
    "sampler": "#009E73",
    OTHER: "#CC79A7",
    NOTHING: "#c9ced4",
}
Segment = tuple[float, float, str]
"""Begin, end (seconds), kind of op."""
_TARGET = re.compile(r"%(?P<name>[\w.\-]+) = .*custom_call_target=\"(?P<target>[^\"]+)\"")
_THREADS = ("tf_XLAEigen", "tf_XLAPjRtCpuClient")


def kinds(text: str) -> dict[str, str]:
    """Kind of every instruction of a step's HLO, by name."""
    module = Module.parse(text)
    targets = {match["name"]: match["target"] for match in _TARGET.finditer(text)}
    found = {line.name: "sampler" for name, lines in module.computations.items() if name != module.entry for line in lines}
    after_head = False
    for line in module.computations[module.entry]:
        kind = _kind(module, line, targets.get(line.name, ""))
        found[line.name] = "sampler" if after_head and kind == OTHER else kind
        after_head |= kind == "head"
    return found


def _kind(module: Module, line: Instruction, target: str) -> str:
    opcodes = module.opcodes_in(line)
    if "Attention" in target:
        return "attention"
    if "KvWrite" in target or "scatter" in opcodes:
        return "KV write"
    if "conditional" in opcodes:
        return "sampler"
    if "atmul" in target or "dot" in opcodes:
        return "head" if any(size == 32000 for array in line.results for size in array.sizes) else "projections"
    return OTHER


def innermost(events: Iterable[Segment]) -> Iterator[Segment]:
    """Of one thread's events, which lie beside or within each other: the parts in which no event lies within."""
    open_events: list[list[Any]] = []  # [from where it is its own, end, kind]
    for begin, end, kind in sorted(events, key=lambda event: (event[0], -event[1])):
        while open_events and open_events[-1][1] <= begin:
            yield from _closed(open_events)
        if open_events and open_events[-1][0] < begin:
            yield open_events[-1][0], begin, open_events[-1][2]
        open_events.append([begin, end, kind])
    while open_events:
        yield from _closed(open_events)


def _closed(open_events: list[list[Any]]) -> Iterator[Segment]:
    begin, end, kind = open_events.pop()
    if begin < end:
        yield begin, end, kind
    if open_events:
        open_events[-1][0] = max(end, open_events[-1][0])


def shared(segments: Iterable[Segment]) -> dict[str, float]:
    """Seconds of each kind, where moments of several threads are shared among them."""
    marks = sorted(mark for begin, end, kind in segments for mark in ((begin, 1, kind), (end, -1, kind)))
    running: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    before = 0.0
    for now, change, kind in marks:
        if total := sum(running.values()):
            for one, count in running.items():
                seconds[one] += (now - before) * count / total
        running[kind] += change
        before = now
    return dict(seconds)


def traced(executor: LocalExecutor, plan: Plan, steps: int, of: Mapping[str, str]) -> dict[str, float]:
    """Seconds a step of each kind of op, and of none."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory, profiler_options=options):
            start = time.perf_counter()
            for _ in range(steps):
                executor.submit(plan).result()
            whole = time.perf_counter() - start
        (path,) = Path(directory).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(path))
    segments: list[Segment] = []
    for plane in data.planes:
        for line in plane.lines:
            if line.name.startswith(_THREADS):
                events = [
                    (1e-9 * event.start_ns, 1e-9 * event.end_ns, of[event.name]) for event in line.events if event.name in of
                ]
                segments += innermost(events)
    found = shared(segments)
    found[NOTHING] = max(whole - sum(found.values()), 0.0)
    return {kind: seconds / steps for kind, seconds in found.items()}


def timed(executor: LocalExecutor, plan: Plan, steps: int) -> dict[str, float]:
    """Milliseconds a step: alone, in a burst of steps submitted one after another, and of `submit` itself."""
    alone, burst, submits = [], [], []
    for _ in range(steps):
        start = time.perf_counter()
        handle = executor.submit(plan)
        submits.append(time.perf_counter() - start)
        handle.result()
        alone.append(time.perf_counter() - start)
        start = time.perf_counter()
        for handle in [executor.submit(plan) for _ in range(BURST)]:
            handle.result()
        burst.append((time.perf_counter() - start) / BURST)
    return {
        "ms": 1e3 * machine.median(burst),
        "least_ms": 1e3 * min(burst),
        "alone_ms": 1e3 * machine.median(alone),
        "submit_ms": 1e3 * machine.median(submits),
    }


def work(shape: Shape) -> tuple[float, float]:
    """Bytes that a step must read, and its operations: weights once in bfloat16, and the keys and values of every row."""
    counts, lengths = shape
    heads = 12 * 16 * 64  # layers, query heads, head dim
    keys = sum(lengths)
    pairs = sum(count * (length - count) + count * (count + 1) // 2 for count, length in zip(counts, lengths, strict=True))
    read = 2 * llama150m.WEIGHTS_READ + 2 * llama150m.KV_VALUES_PER_TOKEN * keys
    return read, 2 * (llama150m.LAYER_WEIGHTS * sum(counts) + llama150m.HEAD_WEIGHTS * len(counts)) + 4 * heads * pairs


def limits() -> dict[str, float]:
    """The best bandwidth (bytes a second) and bfloat16 rate (operations a second) that are measured here."""
    bandwidth, rate = machine.read_bandwidth(), machine.matmul_rate("bfloat16")
    if native.missing() is None:
        (wide,) = products.measure("head", "bfloat16", [1], 9)
        (tall,) = products.measure("gate_up", "bfloat16", [512], 9)
        bandwidth, rate = max(bandwidth, 1e9 * wide["native_gb_per_s"]), max(rate, 1e9 * tall["native_gflop_per_s"])
    return {"bytes_per_s": bandwidth, "flops_per_s": rate}


def measure(executor: LocalExecutor, steps: int, vocabulary: int) -> list[dict[str, Any]]:
    """A case for each shape."""
    best, cases = limits(), []
    for name, shape in SHAPES.items():
        plan = make_plan(shape, executor.capabilities().page_size, vocabulary)
        executor.submit(plan).result()
        times = timed(executor, plan, steps)
        bucket = executor._programs.steps.bucket(plan.num_tokens, plan.num_rows, plan.longest_row)
        program = executor._programs.steps.program(bucket, STANDARD.needed(plan.sampling, plan.samples))
        parts = traced(executor, plan, steps, kinds(program.forward.as_text()) | kinds(program.choose.as_text()))
        scale = times["ms"] / sum(parts.values())
        read, operations = work(shape)
        bounds = {"bytes_ms": 1e3 * read / best["bytes_per_s"], "flops_ms": 1e3 * operations / best["flops_per_s"]}
        case = {"step": name, **times, "parts_ms": {kind: scale * parts.get(kind, 0.0) for kind in COLOURS}, **bounds}
        case["of_bound"] = times["ms"] / max(bounds.values())
        print(f"{name}: {times['ms']:.2f} ms, {case['of_bound']:.2f} times the bound", flush=True)
        cases.append(case)
    return [{**case, **best} for case in cases]


def draw(cases: list[dict[str, Any]], path: Path) -> None:
    """Stacked bars, a step each, as shares of its time, with its milliseconds and its bound."""
    made = Figure(figsize=(9.0, 0.9 + 0.5 * len(cases)), dpi=140, layout="constrained")
    FigureCanvasAgg(made)
    axes = made.subplots()
    made.suptitle("Where the time of a step goes", x=0.01, ha="left", fontsize=12, fontweight="bold")
    for place, case in enumerate(reversed(cases)):
        left = 0.0
        for kind, colour in COLOURS.items():
            share = case["parts_ms"][kind] / case["ms"]
            axes.barh(place, share, left=left, color=colour, height=0.62, label=None if place else kind)
            if share > 0.06:
                axes.text(
                    left + share / 2, place, f"{case['parts_ms'][kind]:.1f}", ha="center", va="center", fontsize=8, color="white"
                )
            left += share
        bound = max(case["bytes_ms"], case["flops_ms"])
        axes.plot([bound / case["ms"]] * 2, [place - 0.38, place + 0.38], color="black", linewidth=2)
        axes.text(1.01, place, f"{case['ms']:.1f} ms, bound {bound:.1f}", va="center", fontsize=9)
    axes.set_yticks(range(len(cases)), [case["step"] for case in reversed(cases)], fontsize=9)
    axes.set_xlim(0, 1.25)
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom", "left"]].set_visible(False)
    made.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=len(COLOURS))
    made.savefig(path, format="png")


def main() -> None:
    """Measure, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON file; the picture lies beside it")
    parser.add_argument("--steps", type=int, default=10, help="of each shape, timed and then recorded")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = str(llama150m.write_config(Path(scratch) / "llama150m"))
        config = EngineConfig.from_settings({**SETTINGS, "model": model})
        built = build_engine(config, strict_length=False, clock=RealClock(), progress=lambda *_: None)
        executor = built.core.executor
        if not isinstance(executor, LocalExecutor):
            raise TypeError("the engine's executor is not of this process")
        cases = measure(executor, given.steps, built.report.model.vocab_size)
    command = " ".join(["python -m benchmarks.step_timeline", *(word for word in sys.argv[1:] if not word.startswith("/"))])
    write_json(given.output, {**machine.describe(), "command": command, "cases": cases})
    draw(cases, given.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
