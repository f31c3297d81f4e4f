"""A report as a picture: load, queue, memory, batches over time, and the distributions of TTFT and ITL."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxserve.errors import ConfigError
from jaxserve.simulation.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _GREEN, _RED, _ORANGE, _GREY = "#2a6fbb", "#2e9e5b", "#c8372d", "#e08a1e", "#8a8f98"
_POINTS = 80  # of a line: more than that is noise at this size
_SIZE = (15.0, 8.0)  # inches
_DPI = 110


def require_matplotlib() -> None:
    """Raise ConfigError, saying how to get it, unless matplotlib can be imported."""
    try:
        import matplotlib  # noqa: F401, PLC0415 - optional
    except ImportError as error:
        raise ConfigError("plots need matplotlib: pip install 'jaxserve[plots]'", param="plot") from error


def plot(report: Report, path: Path) -> None:
    """Draw a report into a PNG file. Raises ConfigError without matplotlib, OSError if the file cannot be written."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes: list[Axes] = list(figure.subplots(2, 3).flat)
    slo = report.scenario.slo
    _requests(axes[0], report)
    _queue(axes[1], report)
    _memory(axes[2], report)
    _tokens(axes[3], report)
    _distribution(axes[4], "Time to first token", report.ttft_curve, slo.slo_ttft_ms, report.all.ttft.p99, _BLUE)
    _distribution(axes[5], "Time between tokens", report.itl_curve, slo.slo_itl_ms, report.all.itl.p99, _GREEN)
    replica, service, replicas = report.scenario.replica, report.all, report.usage.mean_replicas
    figure.suptitle(
        f"{replica.model} on {replicas:.3g} x ({replica.tp} x {report.hardware}): {service.received:,} requests in "
        f"{report.seconds:,.0f} s, {service.slo_share:.1%} within the SLO, goodput {service.goodput_tokens_per_s:,.0f} tokens/s",
        x=0.01,
        ha="left",
        fontsize=13,
    )
    figure.savefig(path, format="png")


def _line(axes: Axes, report: Report, name: str, color: str, **style: Any) -> None:
    times, values = _thinned(report.series[name], report.bin_s)
    axes.plot(times, values, color=color, linewidth=style.pop("linewidth", 1.6), **style)


def _thinned(values: list[float | None], width: float) -> tuple[list[float], list[float]]:
    """Means of so many neighbouring bins that a line has at most `_POINTS`; where there was nothing, the level was 0."""
    step = -(-len(values) // _POINTS) or 1
    groups = [[value or 0.0 for value in values[at : at + step]] for at in range(0, len(values), step)]
    return [(place + 0.5) * step * width for place in range(len(groups))], [sum(group) / len(group) for group in groups]


def _dress(axes: Axes, title: str, below: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(below, fontsize=9)
    axes.grid(visible=True, color="#e3e5e8", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    axes.legend(frameon=False, fontsize=9)


def _from_zero(axes: Axes) -> None:
    axes.set_ylim(bottom=0.0)
    axes.margins(x=0.01)


def _requests(axes: Axes, report: Report) -> None:
    _line(axes, report, "received", _GREY, label="arrive", linewidth=1.2)
    _line(axes, report, "finished", _BLUE, label="finish")
    if report.refusals:
        _line(axes, report, "refusals", _RED, label="refusals")
    _from_zero(axes)
    _dress(axes, "Requests a second", "seconds")


def _queue(axes: Axes, report: Report) -> None:
    _line(axes, report, "running", _BLUE, label="running")
    _line(axes, report, "queue", _ORANGE, label="waiting")
    _from_zero(axes)
    _dress(axes, "Sequences, mean of a replica", "seconds")


def _memory(axes: Axes, report: Report) -> None:
    times, values = _thinned(report.series["kv_use"], report.bin_s)
    axes.fill_between(times, [100 * value for value in values], color=_BLUE, alpha=0.25, linewidth=0)
    axes.plot(times, [100 * value for value in values], color=_BLUE, linewidth=1.6, label="KV pages in use, %")
    axes.set_ylim(0.0, 105.0)
    axes.margins(x=0.01)
    if not report.engines.preemptions:
        _dress(axes, "KV cache, mean of a replica", "seconds")
        return
    right = axes.twinx()
    times, values = _thinned(report.series["preemptions"], report.bin_s)
    right.bar(times, values, width=times[0] * 1.6, color=_RED, alpha=0.8)
    right.set_ylim(0.0, 4 * max(values))  # in the lower quarter, clear of the level
    right.spines["top"].set_visible(False)
    right.tick_params(labelsize=9, colors=_RED)
    axes.bar([0.0], [0.0], color=_RED, label="preemptions a second (right)")
    axes.set_ylim(0.0, 130.0)
    axes.set_yticks([0, 20, 40, 60, 80, 100])
    _dress(axes, "KV cache, mean of a replica", "seconds")


def _tokens(axes: Axes, report: Report) -> None:
    _line(axes, report, "output_tokens", _GREY, label="output", linewidth=1.2)
    _line(axes, report, "good_tokens", _GREEN, label="of requests within the SLO, when they finish")
    _from_zero(axes)
    _dress(axes, "Output tokens a second", "seconds")


def _distribution(axes: Axes, title: str, curve: Iterable[tuple[float, float]], slo_ms: float, p99: float, color: str) -> None:
    points = list(curve)
    axes.set_xscale("log")
    axes.step([1e3 * seconds for seconds, _ in points], [100 * share for _, share in points], where="post", color=color)
    axes.axvline(slo_ms, color=_RED, linewidth=1.2, linestyle="--", label=f"SLO {slo_ms:g} ms")
    axes.axvline(1e3 * p99, color=_GREY, linewidth=1.2, linestyle=":", label=f"p99 {1e3 * p99:,.1f} ms")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_ylim(0.0, 102.0)
    axes.set_ylabel("% at most", fontsize=9)
    _dress(axes, title, "milliseconds")
