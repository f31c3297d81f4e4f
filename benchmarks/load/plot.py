"""A picture of a soak, minute by minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Lines = Mapping[str, Sequence[float | None]]


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Latencies, rows and queue, pages, memory."""
    figure = Figure(figsize=(9, 9), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    minutes = [row["minute"] for row in rows]
    roles = sorted({role for row in rows for role in row["memory_mib"]})
    panels: tuple[tuple[str, Lines], ...] = (
        ("seconds", {f"{name} {key}": _of(rows, f"{name.lower()}_s", key) for name in ("TTFT", "ITL") for key in ("p50", "p99")}),
        (
            "sequences",
            {
                "rows a step, mean": [row["steps"].get("rows", {}).get("mean") for row in rows],
                "waiting, mean": [row["gauges"].get("waiting", {}).get("mean") for row in rows],
                "waiting, most": [row["gauges"].get("waiting", {}).get("max") for row in rows],
            },
        ),
        ("share of pages", {key: [row["gauges"].get("pages", {}).get(key) for row in rows] for key in ("mean", "max")}),
        ("memory (PSS), MiB", {role: [row["memory_mib"].get(role, {}).get("pss") for row in rows] for role in roles}),
    )
    for axes, (unit, lines) in zip(figure.subplots(len(panels), 1, sharex=True), panels, strict=True):
        _panel(axes, minutes, unit, lines)
    figure.axes[0].set_yscale("log")
    figure.axes[-1].set_xlabel("minute")
    figure.savefig(path, format="png")


def _of(rows: Sequence[Mapping[str, Any]], figure: str, key: str) -> list[float | None]:
    return [row[figure].get(key) for row in rows]


def _panel(axes: Axes, minutes: Sequence[int], unit: str, lines: Lines) -> None:
    for name, values in lines.items():
        axes.plot(minutes, [float("nan") if value is None else value for value in values], marker=".", label=name)
    axes.set_ylabel(unit)
    axes.grid(visible=True, color="#e6e8eb", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
