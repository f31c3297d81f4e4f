"""Draws benchmarks/results/comparisons.json into docs/images, for docs/scheduling.md.

python -m benchmarks.comparison_plots
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.comparisons import LIGHT

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "comparisons.json"
IMAGES = ROOT / "docs" / "images"
# Okabe and Ito's colours: told apart by colour-blind readers too.
BLUE, ORANGE, GREEN, RED, GREY, INK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#8a8f98", "#22262b"
Results = dict[str, Any]


def figure(title: str, columns: int, height: float = 3.9) -> tuple[Figure, list[Axes]]:
    """A row of panels under a title that says what is seen."""
    made = Figure(figsize=(5.4 * columns if columns > 1 else 7.6, height), dpi=140, layout="constrained")
    FigureCanvasAgg(made)
    made.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    axes = list(np.atleast_1d(made.subplots(1, columns)).flat)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(visible=True, color="#e6e8eb", linewidth=0.7)
        one.set_axisbelow(True)
        one.tick_params(labelsize=9, colors=INK)
    return made, axes


def name(axes: Axes, below: str, beside: str = "", above: str = "") -> None:
    """Labels of the axes, units in them."""
    axes.set_xlabel(below, fontsize=9, color=INK)
    axes.set_ylabel(beside, fontsize=9, color=INK)
    axes.set_title(above, loc="left", fontsize=10, color=INK)


def label(axes: Axes, x: float, y: float, text: str, color: str, **place: Any) -> None:
    """A word beside a line, in its colour, in place of a legend."""
    offset = place.pop("offset", (6, 0))
    style = {"fontsize": 9, "color": color, "va": "center", "fontweight": "bold", **place}
    axes.annotate(text, (x, y), xytext=offset, textcoords="offset points", annotation_clip=False, **style)


def plain(axes: Axes, which: str) -> None:
    """Numbers as people write them on a logarithmic axis."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.set_minor_formatter(lambda value, _: "")


def bars(axes: Axes, names: Sequence[str], values: Sequence[float], colors: Sequence[str], texts: Sequence[str]) -> None:
    """Horizontal bars, the first on top, each with its number."""
    places = list(range(len(names)))[::-1]
    axes.barh(places, values, color=colors, height=0.62)
    axes.set_yticks(places, names)
    axes.grid(visible=False, axis="y")
    for place, value, text in zip(places, values, texts, strict=True):
        axes.annotate(
            text, (value, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9, color=INK, fontweight="bold"
        )


def batching(results: Results) -> Figure:
    """Throughput and latency against load."""
    made, (left, right) = figure("Continuous batching: more output, and nobody waits for a batch to end", 2)
    for policy, color in (("static", ORANGE), ("continuous", BLUE)):
        runs = [run for run in results["runs"] if run["policy"] == policy]
        rates = [run["rate"] for run in runs]
        left.plot(rates, [run["output_tokens_per_s"] for run in runs], color=color, marker="o", markersize=4)
        right.plot(rates, [run["ttft_p50_s"] for run in runs], color=color, marker="o", markersize=4)
        label(left, rates[-1], runs[-1]["output_tokens_per_s"], policy, color)
        label(right, rates[-1], runs[-1]["ttft_p50_s"], policy, color)
    right.set_yscale("log")
    plain(right, "y")
    name(left, "requests a second", above="Output, tokens a second")
    name(right, "requests a second", above="Time to first token, median, seconds")
    left.set_ylim(bottom=0)
    return made


def chunked_prefill(results: Results) -> Figure:
    """How many gaps between tokens are longer than so many milliseconds."""
    made, (axes,) = figure("Chunks bound the stall that a long prompt causes in others' output", 1)
    places: list[dict[str, Any]] = [{"offset": (7, 14)}, {"offset": (-8, -16), "ha": "right"}, {"offset": (8, -16)}]
    for run, color, place in zip(results["runs"], (ORANGE, BLUE, GREEN), places, strict=True):
        points = [(1e3 * seconds, 100 * (1 - below)) for seconds, below in run["itl_curve"] if below < 1]
        points.append((1e3 * run["itl_max_s"], points[-1][1]))
        axes.step([x for x, _ in points], [y for _, y in points], where="post", color=color, linewidth=2)
        label(axes, 1e3 * run["itl_p99_s"], 1.0, f"{run['policy']}\np99 {1e3 * run['itl_p99_s']:.0f} ms", color, **place)
        axes.plot([1e3 * run["itl_p99_s"]], [1.0], "o", color=color, markersize=6)
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain(axes, "x")
    plain(axes, "y")
    axes.set_xticks([5, 10, 20, 50, 100, 200])
    axes.axhline(1.0, color=GREY, linewidth=0.8, linestyle=":")
    name(axes, "milliseconds between tokens", "% of gaps that are longer")
    return made


def victims(results: Results) -> Figure:
    """Work done twice."""
    made, (axes,) = figure("Taking the pages that cost least to compute again", 1, height=2.6)
    policies = list(dict.fromkeys(run["policy"] for run in results["runs"]))
    shares = [
        [100 * run["tokens_recomputed"] / run["tokens"] for run in results["runs"] if run["policy"] == policy]
        for policy in policies
    ]
    means = [float(np.mean(each)) for each in shares]
    tokens = [np.mean([run["tokens_recomputed"] for run in results["runs"] if run["policy"] == policy]) for policy in policies]
    texts = [f"{mean:.0f} %  ({count:,.0f} tokens)" for mean, count in zip(means, tokens, strict=True)]
    bars(axes, [f"{policy}" for policy in policies], means, [GREY, GREY, BLUE], texts)
    axes.set_xlim(0, max(means) * 1.35)
    name(axes, "% of all computed tokens that were computed before")
    return made


def fairness(results: Results) -> Figure:
    """What the small tenants see of the big one."""
    made, (left, right) = figure("One tenant sends twenty times as much as each of four others", 2)
    runs = results["light"]
    values = [1e3 * run["light"]["ttft_p99_s"] for run in runs]
    texts = [f"{value:,.0f} ms  ({value / values[0]:,.1f}x)" for value in values]
    bars(left, [run["policy"] for run in runs], values, [GREY, ORANGE, BLUE, GREEN], texts)
    left.set_xscale("log")
    left.set_xlim(10, max(values) * 12)
    plain(left, "x")
    name(left, "milliseconds", above="The four's time to first token, p99")
    for place, (run, color) in enumerate(zip(results["crowded"], (ORANGE, BLUE, GREEN), strict=True)):
        tenants = ["heavy", *LIGHT]
        rates = [run["tenants"][tenant]["output_tokens_per_s"] for tenant in tenants]
        right.bar(np.arange(len(tenants)) + 0.27 * (place - 1), rates, width=0.25, color=color)
        right.annotate(
            f"{run['policy']}: {jain(run['jain'])}",
            (0.98, 0.95 - 0.08 * place),
            xycoords="axes fraction",
            ha="right",
            color=color,
            fontsize=9,
            fontweight="bold",
        )
    right.set_xticks(range(len(tenants)), tenants)
    right.grid(visible=False, axis="x")
    name(right, "", above="Output, tokens a second, when all want more than a fifth")
    return made


def jain(index: float | None) -> str:
    """Jain's index in words; there is none where tenants never waited side by side for long."""
    return "never in competition" if index is None else f"Jain's index {index:.2f}"


def overload(results: Results) -> Figure:
    """Good tokens over time."""
    made, (axes,) = figure("Without shedding everybody is late, long after a tenfold spike", 1)
    axes.axvspan(30, 45, color="#f3e9d8", linewidth=0)
    for run, color in zip(results["spike"], (RED, ORANGE, BLUE), strict=True):
        times, values = smooth(run, "good_tokens")
        axes.plot(times, values, color=color, linewidth=2)
        text = (
            f"{run['policy']}: {run['goodput_tokens_per_s'] * run['seconds'] / 1e3:,.0f}K good tokens, {run['refused']:,} refused"
        )
        axes.annotate(
            text,
            (0.99, 0.97 - 0.075 * results["spike"].index(run)),
            xycoords="axes fraction",
            ha="right",
            va="top",
            color=color,
            fontsize=9,
            fontweight="bold",
        )
    axes.annotate("spike", (37.5, 0), xytext=(0, 4), textcoords="offset points", ha="center", fontsize=9, color=INK)
    axes.set_ylim(0, 1.35 * axes.get_ylim()[1])
    axes.set_xlim(left=0)
    name(axes, "seconds", above="Goodput: tokens a second of requests that started within 1 s")
    return made


def storm(results: Results) -> Figure:
    """What clients do to the server that refused them."""
    made, (left, right) = figure("Refused clients come back: when they are told to, and when they please", 2)
    for run, color in zip(results["storm"], (BLUE, RED), strict=True):
        times, values = smooth(run, "refusals")
        left.plot(times, values, color=color, linewidth=2)
        right.plot(*smooth(run, "finished"), color=color, linewidth=2)
        peak = int(np.argmax(values))
        text = f"{run['policy']}:\n{sum(run['refusals'].values()):,} refusals, {run['finished']:,} finished"
        label(left, times[peak], values[peak], text, color, offset=(34, 4))
    left.set_ylim(bottom=0)
    right.set_ylim(bottom=0)
    name(left, "seconds", above="Refusals a second")
    name(right, "seconds", above="Requests finished a second")
    return made


def swapping(results: Results) -> Figure:
    """Throughput by link."""
    made, (axes,) = figure("Swap where the link is faster than computing again", 1)
    floor = next(run["output_tokens_per_s"] for run in results["runs"] if run["policy"] == "recompute")
    always = [(run["gbps"], run["output_tokens_per_s"]) for run in results["runs"] if run["policy"] == "swap"]
    chosen = [(run["gbps"], run["output_tokens_per_s"]) for run in results["runs"] if run["policy"] == "the cheaper"]
    axes.axhline(floor, color=ORANGE, linewidth=2)
    axes.plot(*zip(*always, strict=True), color=BLUE, linewidth=2, marker="o", markersize=4)
    axes.plot(*zip(*chosen, strict=True), linestyle="none", marker="o", markersize=10, markerfacecolor="none", color=GREEN)
    crossover = results["crossover_gbps"]
    axes.axvline(crossover, color=GREY, linewidth=1, linestyle="--")
    low = min(value for _, value in always)
    label(axes, crossover, low, f"crossover by the formula:\n{crossover:.1f} GB/s", GREY, offset=(7, 10))
    label(axes, 1.0, floor, "compute again", ORANGE, offset=(0, 9))
    label(axes, always[1][0], always[1][1], "swap always", BLUE, offset=(10, -6))
    label(axes, chosen[-1][0], chosen[-1][1], "what the scheduler does", GREEN, offset=(-8, 14), ha="right")
    axes.set_xscale("log", base=2)
    plain(axes, "x")
    axes.set_ylim(low - 120, 1.05 * max(value for _, value in always))
    name(axes, "link to the host, GB/s", above="Output, tokens a second")
    return made


def smooth(run: dict[str, Any], series: str, points: int = 60) -> tuple[list[float], list[float]]:
    """Means of neighbouring bins: at most so many points."""
    values = run["series"][series]
    step = -(-len(values) // points) or 1
    groups = [values[at : at + step] for at in range(0, len(values), step)]
    return [(place + 0.5) * step * run["bin_s"] for place in range(len(groups))], [sum(group) / len(group) for group in groups]


PLOTS: dict[str, tuple[str, Callable[[Results], Figure]]] = {
    "batching": ("batching", batching),
    "chunked_prefill": ("chunked_prefill", chunked_prefill),
    "victims": ("victims", victims),
    "fairness": ("fairness", fairness),
    "overload": ("overload", overload),
    "storm": ("overload", storm),
    "swapping": ("swapping", swapping),
}


def main() -> None:
    """Draw what the results file has."""
    results = json.loads(RESULTS.read_text())
    IMAGES.mkdir(parents=True, exist_ok=True)
    for file, (key, draw) in PLOTS.items():
        if key in results:
            draw(results[key]).savefig(IMAGES / f"{file}.png", format="png")


if __name__ == "__main__":
    main()
