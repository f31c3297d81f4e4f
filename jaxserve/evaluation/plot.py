"""Results as a picture: a panel for each metric of each task, over the checkpoints; or the bars of one model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxserve.errors import ConfigError
from jaxserve.evaluation.differences import LEVEL, differences
from jaxserve.evaluation.result import Result, labels, steps
from jaxserve.evaluation.scores import Score, scores
from jaxserve.simulation.plots import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _GREEN, _GREY = "#2a6fbb", "#2e9e5b", "#8a8f98"
_DPI = 110
_COLUMNS = 4  # panels side by side
_PANEL = (3.6, 2.7)  # inches
_BAR = 0.27  # inches a bar
_AROUND = 0.72  # inches of title and axis
_NORMAL = 1.96  # standard errors on each side: 95 % of a normal distribution
_STRAIGHT = 12  # characters of a name that stand upright below an axis
_ERROR: dict[str, Any] = {"elinewidth": 1.2, "capsize": 3, "ecolor": _GREY}


def plot(results: Sequence[Result], path: Path) -> None:
    """Draw results into a PNG file; of several, how each metric goes from one to the next.

    Raises ConfigError without matplotlib and if the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    if len(results) > 1:
        _checkpoints(figure, results)
    else:
        _bars(figure, results[0])
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", param="plot") from error


def _checkpoints(figure: Figure, results: Sequence[Result]) -> None:
    names = labels(results)
    numbers = steps(names)
    found = [{score.key: score for score in scores(result)} for result in results]
    told = [{entry.score.key for entry in differences(results[0], result) if entry.significant} for result in results]
    keys = list(dict.fromkeys(key for entries in found for key in entries))
    rows = -(-len(keys) // _COLUMNS)
    columns = min(_COLUMNS, len(keys))
    figure.set_size_inches(_PANEL[0] * columns, _PANEL[1] * rows + 0.6)
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, key in zip(panels, keys, strict=False):
        _line(axes, [entries.get(key) for entries in found], [key in entries for entries in told], numbers)
        _places(axes, names, numbers)
    for axes in panels[len(keys) :]:
        axes.set_visible(False)
    title = (
        f"{len(results)} checkpoints: ± {_NORMAL} standard errors; filled where the difference from {names[0]} has p < {LEVEL}"
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)


def _line(axes: Axes, line: Sequence[Score | None], told: Sequence[bool], numbers: Sequence[int] | None) -> None:
    """One metric of one task, for each checkpoint that was scored on it; `told`: whether it is told apart from the first one."""
    places = list(numbers or range(len(line)))
    points = [(place, score) for place, score in zip(places, line, strict=True) if score is not None and score.value is not None]
    filled = [apart for apart, score in zip(told, line, strict=True) if score is not None and score.value is not None]
    shown = next(score for score in line if score is not None)
    color = _GREEN if shown.group else _BLUE
    values, errors = [score.value or 0.0 for _, score in points], [_error(score) for _, score in points]
    axes.errorbar([place for place, _ in points], values, yerr=errors, color=color, **_ERROR)
    for place, value, apart in zip((place for place, _ in points), values, filled, strict=True):
        axes.plot([place], [value], marker="o", markersize=5.5, color=color, markerfacecolor=color if apart else "white")
    axes.set_title(f"{shown.task}\n{shown.label}{_better(shown)}", loc="left", fontsize=9.5)
    axes.margins(x=0.08, y=0.15)
    low = min((value - (0.0 if math.isnan(error) else error) for value, error in zip(values, errors, strict=True)), default=0.0)
    if shown.higher_is_better and values and min(values) >= 0.0 and max(values) <= 1.0:
        axes.set_ylim(min(low, 0.9) - 0.03, 1.03)  # of a share; an axis that follows the noise would make much of it
    _dress(axes)


def _places(axes: Axes, names: Sequence[str], numbers: Sequence[int] | None) -> None:
    if numbers is not None:
        axes.set_xlabel("step", fontsize=8.5)
        return
    longest = max(map(len, names))
    slanted = longest * len(names) > _STRAIGHT * 3
    axes.set_xticks(range(len(names)), names, rotation=30 if slanted else 0, ha="right" if slanted else "center")
    axes.set_xlim(-0.4, len(names) - 0.6)


def _bars(figure: Figure, result: Result) -> None:
    """Shares of right answers together, then a panel for each other metric: their scales have nothing in common."""
    found = [score for score in scores(result) if score.value is not None]
    shares = [score for score in found if score.higher_is_better and 0.0 <= (score.value or 0.0) <= 1.0]
    others = [score for score in found if score not in shares]
    panels = [shares] * bool(shares) + [[score for score in others if score.label == name] for name in _unique(others)]
    heights = [len(panel) + 0.5 for panel in panels]
    figure.set_size_inches(9.0, sum(heights) * _BAR + len(panels) * _AROUND + 0.4)
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for axes, panel in zip(grid.flat, panels, strict=True):
        _panel(axes, panel, together=panel is shares)
    model = result.header["model"]
    title = f"{result.name} ({model['parameters']:,} parameters); lines at the ends are ± {_NORMAL} standard errors"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)


def _unique(found: Sequence[Score]) -> list[str]:
    return list(dict.fromkeys(score.label for score in found))


def _panel(axes: Axes, panel: Sequence[Score], *, together: bool) -> None:
    places = range(len(panel))
    several = together and len(_unique(panel)) > 1
    names = [f"{score.task}  {score.label}" if several else score.task for score in panel]
    values = [score.value or 0.0 for score in panel]
    errors = [_error(score) for score in panel]
    ends = [value + (0.0 if math.isnan(error) else error) for value, error in zip(values, errors, strict=True)]
    colors = [_GREEN if score.group else _BLUE for score in panel]
    axes.barh(places, values, xerr=errors, color=colors, height=0.7, error_kw=_ERROR)
    for place, value, end in zip(places, values, ends, strict=True):
        axes.annotate(f"{value:.3f}", (end, place), (5, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(places, names)
    axes.set_ylim(len(panel) - 0.5, -0.5)
    axes.set_xlim(0.0, 1.12 * max(1.0 if together else 0.0, *ends))
    title = "shares of right answers ↑" if together else f"{panel[0].label}{_better(panel[0])}"
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    _dress(axes)


def _error(score: Score) -> float:
    """Not a number, which draws nothing, where there is no standard error."""
    return math.nan if score.stderr is None else _NORMAL * score.stderr


def _better(score: Score) -> str:
    return {True: " ↑", False: " ↓", None: ""}[score.higher_is_better]


def _dress(axes: Axes) -> None:
    axes.grid(visible=True, color="#e3e5e8", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8.5)
