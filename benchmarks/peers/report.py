"""The table and the picture of a comparison."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.pages import markdown
from benchmarks.peers.figures import Figures, best_peer, ratios

OWN = "jaxserve"
COLOURS = {"llama.cpp": "#D55E00", "vllm": "#0072B2", "openvino": "#009E73", "transformers": "#8a8f98"}
INK = "#22262b"
Runs = Mapping[str, Mapping[str, Sequence[Figures]]]  # workload -> engine -> rounds

# What is shown of each workload.
SHOWN: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("one stream", ("decode_tokens_per_s",)),
    ("8 streams", ("output_tokens_per_s", "decode_tokens_per_s")),
    ("16 streams", ("output_tokens_per_s", "decode_tokens_per_s")),
    ("32 streams", ("output_tokens_per_s", "decode_tokens_per_s")),
    ("prefill 512", ("prefill_tokens_per_s",)),
    ("mixed burst", ("output_tokens_per_s", "ttft_p50_s", "ttft_p99_s", "itl_p99_s", "memory_gb")),
    ("mixed poisson", ("output_tokens_per_s", "ttft_p50_s", "ttft_p99_s", "itl_p99_s")),
    ("shared prefix", ("seconds",)),
)
_NAMES = {
    "decode_tokens_per_s": "decode, tokens/s",
    "output_tokens_per_s": "output, tokens/s",
    "prefill_tokens_per_s": "prefill, tokens/s",
    "ttft_p50_s": "TTFT p50, s",
    "ttft_p99_s": "TTFT p99, s",
    "itl_p99_s": "ITL p99, s",
    "seconds": "seconds",
    "memory_gb": "memory, GB",
}


def lines(runs: Runs) -> list[tuple[str, str]]:
    """Workloads and figures that all engines have."""
    return [
        (workload, figure)
        for workload, figures in SHOWN
        for figure in figures
        if workload in runs and all(figure in one for rounds in runs[workload].values() for one in rounds)
    ]


def compared(runs: Runs) -> list[dict[str, Any]]:
    """Each line: the engines' medians, our ratio to each other one and which of them is best."""
    made = []
    for workload, figure in lines(runs):
        found = runs[workload]
        peers = [name for name in found if name != OWN]
        made.append(
            {
                "workload": workload,
                "figure": figure,
                "medians": {name: statistics.median(one[figure] for one in rounds) for name, rounds in found.items()},
                "ratios": {name: ratios(found[OWN], found[name], figure) for name in peers},
                "best_peer": best_peer(found, OWN, figure) if peers else None,
            }
        )
    return made


def table(report: Mapping[str, Any]) -> str:
    """Markdown: a line of medians for each figure, and how far ahead of the best other engine we are, round by round."""
    engines = list(report["engines"])
    rows: list[list[str]] = []
    for line in report["compared"]:
        ratio = line["ratios"].get(line["best_peer"])
        ahead = f"{ratio['median']:.2f}x ({ratio['min']:.2f}-{ratio['max']:.2f}) {line['best_peer']}" if ratio else ""
        medians = [_number(line["medians"][name]) for name in engines]
        rows.append([f"{line['workload']}: {_NAMES[line['figure']]}", *medians, ahead])
    for key, name, scale in (("memory_ready", "memory at ready, GB", 1e9), ("memory_loaded", "memory after the load, GB", 1e9)):
        rows.append([name, *(f"{report['engines'][engine][key] / scale:.2f}" for engine in engines), ""])
    rows.append(["ready after, s", *(f"{report['engines'][engine]['ready_seconds']:.1f}" for engine in engines), ""])
    rows.append(["wrong tokens", *(str(report["wrong_tokens"][engine]) for engine in engines), ""])
    return markdown(["", *engines, "ahead of the best other"], rows)


def draw(report: Mapping[str, Any], path: Path) -> None:
    """A dot for the median ratio to each other engine, a line from the least to the most."""
    found = report["compared"]
    peers = [name for name in report["engines"] if name != OWN]
    made = Figure(figsize=(8.2, 0.9 + 0.42 * len(found)), dpi=140, layout="constrained")
    FigureCanvasAgg(made)
    axes = made.subplots()
    made.suptitle("How many times better jaxserve is, in the same run", x=0.01, ha="left", fontsize=12, fontweight="bold")
    for number, name in enumerate(peers):
        for place, line in enumerate(reversed(found)):
            ratio, height = line["ratios"][name], place + 0.18 * ((len(peers) - 1) / 2 - number)
            axes.plot([ratio["min"], ratio["max"]], [height, height], color=COLOURS[name], linewidth=2, alpha=0.5)
            axes.plot([ratio["median"]], [height], "o", color=COLOURS[name], markersize=5, label=name if not place else None)
    axes.axvline(1.0, color=INK, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_yticks(range(len(found)), [f"{line['workload']}: {_NAMES[line['figure']]}" for line in reversed(found)], fontsize=9)
    axes.grid(visible=True, axis="x", color="#e6e8eb", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="best")
    made.savefig(path, format="png")


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 20 else f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"
