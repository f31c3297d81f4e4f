"""What an audit found, as a picture: the errors of products, and what rounding each of the worst alone does to perplexity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxserve.errors import ConfigError
from jaxserve.quantization.audit import Proposal, increase
from jaxserve.quantization.recipes import Recipe
from jaxserve.simulation.plots import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _RED = "#2a6fbb", "#c8372d"
_DPI = 110
_BAR = 0.24  # inches a bar
_WIDTH, _AROUND = 11.0, 1.3  # inches


def plot(proposal: Proposal, recipe: Recipe, path: Path) -> None:
    """Draw an audit into a PNG file; what is kept is red.

    Raises ConfigError without matplotlib and if the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure  # noqa: PLC0415

    rounded = proposal.selection.units()
    kept = {".".join(unit) for unit in proposal.errors if unit not in rounded}
    errors = {".".join(unit): sums.relative for unit, sums in proposal.errors.items()}
    alone = {".".join(unit): increase(proposal.before, after) for unit, after in proposal.alone.items()}
    figure = Figure(figsize=(_WIDTH, _AROUND + _BAR * max(len(errors), len(alone))), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _bars(left, errors, kept, "|error of products| / |products|")
    _bars(right, alone, kept, "perplexity with nothing else rounded, %")
    whole, rest = (increase(proposal.before, after) for after in (proposal.after, proposal.proposed))
    title = f"{recipe.name}: perplexity {whole:+.2f} % with everything rounded, {rest:+.2f} % without what is red"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", param="plot") from error


def _bars(axes: Axes, values: Mapping[str, float], kept: set[str], title: str) -> None:
    names: Sequence[str] = list(values)
    axes.barh(range(len(names)), list(values.values()), color=[_RED if name in kept else _BLUE for name in names], height=0.7)
    axes.set_yticks(range(len(names)), names, fontsize=7.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.grid(visible=True, axis="x", color="#e3e5e8", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
