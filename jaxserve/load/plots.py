"""A report as a picture: distributions of TTFT and ITL, output over time, and every request as a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxserve.load.outcome import RequestOutcome
from jaxserve.load.report import LoadReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _GREEN, _RED, _GREY = "#2a6fbb", "#2e9e5b", "#c8372d", "#8a8f98"
_SIZE = (14.0, 8.0)  # inches
_DPI = 110
_BINS = 80
_MAX_LINES = 400  # more requests than that are a surface, not lines


def plot(report: LoadReport, outcomes: Sequence[RequestOutcome], path: Path) -> None:
    """Draw into a PNG file. matplotlib must be there; raises OSError if the file cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes: list[Axes] = list(figure.subplots(2, 2).flat)
    _distribution(axes[0], "Time to first token", report.ttft_curve, report.slo.slo_ttft_ms, report.ttft.p99, _BLUE)
    _distribution(axes[1], "Time between tokens, by request", report.itl_curve, report.slo.slo_itl_ms, report.itl.p99, _GREEN)
    _output(axes[2], outcomes)
    _requests(axes[3], outcomes)
    figure.suptitle(
        f"{report.model}: {report.finished:,} of {report.requests:,} requests in {report.seconds:,.1f} s, "
        f"{report.output_tokens_per_s:,.0f} output tokens/s, {report.slo_share:.1%} within the SLO",
        x=0.01,
        ha="left",
        fontsize=13,
    )
    figure.savefig(path, format="png")


def _distribution(axes: Axes, title: str, curve: Sequence[tuple[float, float]], limit_ms: float, p99: float, color: str) -> None:
    axes.step([1e3 * seconds for seconds, _ in curve], [share for _, share in curve], where="post", color=color)
    axes.axvline(limit_ms, color=_RED, linestyle="--", linewidth=1, label=f"SLO {limit_ms:g} ms")
    axes.axvline(1e3 * p99, color=_GREY, linestyle=":", linewidth=1, label=f"p99 {1e3 * p99:,.1f} ms")
    axes.set(title=title, xlabel="milliseconds", ylabel="share of requests", ylim=(0, 1.02))
    axes.set_xlim(left=0)
    axes.legend(loc="lower right")


def _output(axes: Axes, outcomes: Sequence[RequestOutcome]) -> None:
    start = min(outcome.due for outcome in outcomes)
    times = [piece - start for outcome in outcomes for piece in outcome.pieces]
    span = max(outcome.ended for outcome in outcomes) - start
    axes.hist(times, bins=_BINS, range=(0, span), weights=[_BINS / span] * len(times), color=_BLUE)
    axes.set(title="Pieces of text a second", xlabel="seconds", xlim=(0, span))


def _requests(axes: Axes, outcomes: Sequence[RequestOutcome]) -> None:
    start = min(outcome.due for outcome in outcomes)
    shown = sorted(outcomes, key=lambda outcome: outcome.due)[:_MAX_LINES]
    for place, outcome in enumerate(shown):
        first = outcome.pieces[0] if outcome.pieces else outcome.ended
        color = _GREEN if outcome.error is None else _RED
        axes.plot([outcome.due - start, first - start], [place, place], color=_GREY, linewidth=1)
        axes.plot([first - start, outcome.ended - start], [place, place], color=color, linewidth=1)
    more = f" (the first {_MAX_LINES})" if len(outcomes) > _MAX_LINES else ""
    axes.set(title=f"Requests{more}: grey until the first token, red if it failed", xlabel="seconds", ylabel="request")
