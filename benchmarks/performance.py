"""Writes the tables of docs/performance.md from the results files: `python -m benchmarks.performance`.

Each table stands between marks with its name. A results file that is not there yet leaves a line that says how it is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages import markdown, with_table
from benchmarks.peers.report import OWN, table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NAME = "benchmarks/performance.py"
COMMANDS = {
    "peers": "python -m benchmarks.peers",
    "step_timeline": "python -m benchmarks.step_timeline",
    "host_loop": "python -m benchmarks.host_loop",
    "cold_start": "python -m benchmarks.cold_start",
}
# Of the comparison: workload, figure, beside whom ("" the best other engine), at least how many times better.
REACH = (
    ("16 streams", "decode_tokens_per_s", "", 1.1),
    ("32 streams", "decode_tokens_per_s", "", 1.1),
    ("one stream", "decode_tokens_per_s", "llama.cpp", 0.8),
    ("one stream", "decode_tokens_per_s", "vllm", 1.0),
    ("mixed burst", "output_tokens_per_s", "", 1.1),
    ("mixed burst", "ttft_p50_s", "", 1.0),
    ("mixed burst", "itl_p99_s", "", 1.0),
    ("shared prefix", "seconds", "", 1.25),
    ("prefill 512", "prefill_tokens_per_s", "", 0.8),
)
LEAN = ("vllm", "openvino")
HOST_ROWS, HOST_MS, SECOND_START, OF_BOUND, OF_MEMORY = "256", 1.0, 0.25, 1.5, 1.2
Results = Mapping[str, Any]


def read(name: str) -> Results | None:
    """A results file, if it is there."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def reached(found: Mapping[str, Results | None]) -> str:
    """What was to be reached, what was measured, and whether that is enough."""
    rows: list[list[str]] = []

    def add(what: str, wanted: str, measured: str, *, enough: bool) -> None:
        rows.append([what, wanted, measured, "yes" if enough else "**no**"])

    if (peers := found["peers"]) is not None:
        lines = {(line["workload"], line["figure"]): line for line in peers["compared"]}
        for workload, figure, whom, least in REACH:
            line = lines.get((workload, figure))
            peer = whom or (line or {}).get("best_peer")
            if line is not None and peer in line["ratios"]:
                ratio = line["ratios"][peer]
                measured = f"{ratio['median']:.2f}x ({ratio['min']:.2f}-{ratio['max']:.2f})"
                add(f"{workload}: {figure}, beside {peer}", f">= {least:g}x", measured, enough=ratio["median"] >= least)
        lean = [peers["engines"][name] for name in LEAN if name in peers["engines"]]
        for key, name in (("memory_ready", "memory at ready"), ("memory_loaded", "memory after the load")):
            if lean:
                ratio = peers["engines"][OWN][key] / min(engine[key] for engine in lean)
                add(
                    f"{name}, beside the leaner of vLLM and OpenVINO",
                    f"<= {OF_MEMORY}x",
                    f"{ratio:.2f}x",
                    enough=ratio <= OF_MEMORY,
                )
    if (steps := found["step_timeline"]) is not None:
        case = next(case for case in steps["cases"] if case["step"] == "decode, 16 rows")
        add(
            "decode step of 16 rows over its bound",
            f"<= {OF_BOUND}",
            f"{case['of_bound']:.2f}",
            enough=case["of_bound"] <= OF_BOUND,
        )
    if (host := found["host_loop"]) is not None:
        taken = host["median_microseconds"]["decode"][HOST_ROWS]["engine"] / 1e3
        add(f"host loop at {HOST_ROWS} rows", f"< {HOST_MS:g} ms", f"{taken:.2f} ms", enough=taken < HOST_MS)
    if (cold := found["cold_start"]) is not None:
        for model, starts in _models(cold).items():
            share = starts["second_to_first_seconds"]
            add(f"{model}: second start over first start", f"<= {SECOND_START}", f"{share:.3f}", enough=share <= SECOND_START)
    return markdown(["", "to reach", "measured", "reached"], rows)


def compared(peers: Results) -> str:
    """The engines side by side, and where they were."""
    made = (
        f"{peers['cpu']}, {peers['cores']} cores, {peers['date']}, {peers['rounds']} rounds in {peers['minutes']:.0f} minutes; "
    )
    return f"{made}medians.\n\n{table(peers)}"


def agreed(peers: Results) -> str:
    """Tokens that transformers would not have chosen, by workload."""
    found: Mapping[str, Any] = peers.get("agreement", {})
    workloads: Mapping[str, Any] = next(iter(found.values()), {})
    rows = [
        [
            workload,
            one["tokens"],
            *(f"{found[dtype][workload]['others']} ({found[dtype][workload]['gap']:.4f})" for dtype in found),
        ]
        for workload, one in workloads.items()
    ]
    return markdown(["", "tokens", *(f"not transformers' in {dtype} (largest gap)" for dtype in found)], rows)


def steps(timeline: Results) -> str:
    """Milliseconds of each step beside its bound, and their parts."""
    cases = timeline["cases"]
    parts = list(cases[0]["parts_ms"])
    first = cases[0]
    rows = [
        [
            case["step"],
            *(f"{value:.1f}" for value in (case["ms"], case["bytes_ms"], case["flops_ms"])),
            f"{case['of_bound']:.2f}",
            *(f"{case['parts_ms'][part]:.1f}" for part in parts),
        ]
        for case in cases
    ]
    best = f"Bounds from {first['bytes_per_s'] / 1e9:.0f} GB/s and {first['flops_per_s'] / 1e9:.0f} GFLOP/s. Milliseconds."
    return f"{best}\n\n{markdown(['step', 'measured', 'bytes', 'operations', 'over the larger', *parts], rows)}"


def host(found: Results) -> str:
    """Microseconds of the host's work in a step, by rows."""
    decode = found["median_microseconds"]["decode"]
    phases = [phase for phase in next(iter(decode.values())) if "+" not in phase]
    return markdown(["rows", *phases], [[rows, *(f"{times[phase]:.0f}" for phase in phases)] for rows, times in decode.items()])


def started(found: Results) -> str:
    """Seconds from the command to ready, and of each phase, by model and by what was kept from before."""
    rows = [
        [model, kind, f"{start['seconds']:.1f}", *(f"{value:.1f}" for value in start["phases"].values())]
        for model, starts in _models(found).items()
        for kind, start in starts.items()
        if isinstance(start, dict)
    ]
    phases = next(start["phases"] for starts in _models(found).values() for start in starts.values())
    return markdown(["model", "start", "seconds", *phases], rows)


def _models(cold: Results) -> Mapping[str, Any]:
    return {name: one for name, one in cold.items() if isinstance(one, dict) and "second_to_first_seconds" in one}


# Page -> name of a table -> its results file and what makes it.
PAGES: Mapping[str, Mapping[str, tuple[str, Callable[[Results], str]]]] = {
    "docs/performance.md": {
        "engines": ("peers", compared),
        "agreement": ("peers", agreed),
        "steps": ("step_timeline", steps),
        "host": ("host_loop", host),
        "start": ("cold_start", started),
    },
}
REACHED = "reached"


def main() -> None:
    """Write all tables."""
    found = {name: read(name) for name in COMMANDS}
    for page, tables in PAGES.items():
        path = ROOT / page
        text = path.read_text()
        for name, (file, make) in tables.items():
            results = found[file]
            made = make(results) if results is not None else f"Not measured yet: `{COMMANDS[file]}`."
            text = with_table(text, f"{NAME} {name}", made)
        if page.startswith("docs"):
            text = with_table(text, f"{NAME} {REACHED}", reached(found))
        path.write_text(text)


if __name__ == "__main__":
    main()
