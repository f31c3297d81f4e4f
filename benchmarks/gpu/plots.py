"""Plots of a run: decode bandwidth, prefill rates, decode steps beside their roofline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu import derive
from benchmarks.gpu.tasks import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (8.0, 4.5)  # inches
DPI = 110
BAR = 0.35


def draw(result: Figure, directory: Path) -> Iterator[Path]:
    """Draw gpu_decode.png, gpu_prefill.png and gpu_engine.png, those that there are figures for; none without matplotlib."""
    if find_spec("matplotlib") is None:
        return
    pictures: tuple[tuple[str, list[Figure], Callable[[Axes, list[Figure]], None]], ...] = (
        ("gpu_decode.png", list(derive.decodes(result)), _decode),
        ("gpu_prefill.png", list(derive.prefills(result)), _prefill),
        ("gpu_engine.png", list(derive.steps(result)), _engine),
    )
    for name, found, paint in pictures:
        if found:
            yield _save(directory / name, found, paint, _title(result))


def _save(path: Path, found: list[Figure], paint: Callable[[Axes, list[Figure]], None], title: str) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure as Picture  # noqa: PLC0415

    picture = Picture(figsize=SIZE, dpi=DPI, layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    paint(axes, found)
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    picture.suptitle(title, x=0.01, ha="left", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, format="png")
    return path


def _title(result: Figure) -> str:
    device = next((figure["device"] for figure in derive.figures(result, "device")), "unknown device")
    return f"{device}, {result['date']}" + ("" if result["sizes"] == "full" else f" ({result['sizes']})")


def _decode(axes: Axes, found: list[Figure]) -> None:
    """GB/s by rows, a line a context; the other kernels dashed."""
    first = found[0]["implementation"]
    for kernel in dict.fromkeys(figure["implementation"] for figure in found):
        for number, context in enumerate(sorted({figure["context"] for figure in found})):
            line = sorted(
                (f["rows"], f["bytes_per_second"] / 1e9)
                for f in found
                if (f["implementation"], f["context"]) == (kernel, context)
            )
            if line:
                rows, speeds = zip(*line, strict=True)
                style = "-o" if kernel == first else "--"
                axes.plot(rows, speeds, style, color=f"C{number}", label=f"{kernel}, {context} keys", markersize=4)
    shares = [figure for figure in found if figure["share"]]
    if shares:
        axes.axhline(shares[0]["bytes_per_second"] / shares[0]["share"] / 1e9, color="black", linewidth=1, label="copy")
    axes.set(xscale="log", xlabel="rows", ylabel="decode attention: GB/s of keys and values")
    axes.set_ylim(bottom=0)


def _prefill(axes: Axes, found: list[Figure]) -> None:
    """TFLOP/s of every case, a bar an implementation."""
    cases = sorted({(figure["context"], figure["queries"]) for figure in found})
    names = list(dict.fromkeys(figure["implementation"] for figure in found))
    for number, name in enumerate(names):
        rates = {(f["context"], f["queries"]): f["flops_per_second"] / 1e12 for f in found if f["implementation"] == name}
        places = [place + (number - (len(names) - 1) / 2) * BAR * 2 / len(names) for place in range(len(cases))]
        axes.bar(places, [rates.get(case, 0.0) for case in cases], BAR * 2 / len(names), label=name)
    axes.set_xticks(range(len(cases)), [f"{queries}\non {context}" for context, queries in cases])
    axes.set_ylabel("prefill attention: TFLOP/s")


def _engine(axes: Axes, found: list[Figure]) -> None:
    """Milliseconds of a step, of the device's part and of the roofline, by rows."""
    places = range(len(found))
    axes.bar([place - BAR / 2 for place in places], [f["seconds"] * 1e3 for f in found], BAR, label="step")
    axes.bar([place + BAR / 2 for place in places], [f["device"]["seconds"] * 1e3 for f in found], BAR, label="device")
    lines = [(place, f["roofline_seconds"] * 1e3) for place, f in enumerate(found) if f["roofline_seconds"]]
    if lines:
        axes.plot(*zip(*lines, strict=True), "k_", markersize=40, label="roofline")
    axes.set_xticks(places, [f"{f['rows']} x {f['context']}\n{f['choice']}" for f in found])
    axes.set_ylabel("8B decode step: ms")
