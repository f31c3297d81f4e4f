"""The results as Markdown, for docs/performance.md, and as plots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gpu import derive, plots
from benchmarks.gpu.tasks import Figure

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def write(path: Path) -> int:
    """Print the tables of a results file and draw its plots. Returns the exit code: 1 if there is no file."""
    if not path.exists():
        print(f"No GPU run has been made: there is no {path}. On a machine with an H100 or H200: python -m benchmarks.gpu")
        return 1
    result = json.loads(path.read_text())
    print(text(result))
    for drawn in plots.draw(result, IMAGES):
        print(f"drawn: {drawn}")
    return 0


def text(result: Figure) -> str:
    """Everything that was measured, as Markdown."""
    parts = [
        "\n".join(_machine(result)),
        _table(("target", "measured", "wanted", ""), _targets(result)),
        _table(("decode attention", *_columns(derive.decodes(result)), "share of copy"), _decodes(result)),
        _table(("prefill attention", "implementation", "ms", "TFLOP/s", "of dense"), _prefills(result)),
        _table(
            ("8B decode", "ms a step", "device ms", "roofline ms", "ratio", "host gap", "tokens/s", "transformers"),
            _steps(result),
        ),
        "\n".join(_engine(result)),
        _table(("kv_write tokens", "implementation", "us", "GB/s"), _writes(result)),
        _table(("tiles", "change", "us"), _tiles(result)),
        _table(("parity", "implementation", "dtype", "max abs", "cosine", "verdicts"), _parity(result)),
        "\n".join(_missing(result)),
    ]
    return "\n\n".join(part for part in parts if part)


def _machine(result: Figure) -> Iterator[str]:
    if result["sizes"] != "full":
        yield f"**A {result['sizes']}, on tiny sizes: these figures say nothing about any GPU.**\n"
    for device in derive.figures(result, "device"):
        versions = ", ".join(f"{name} {version}" for name, version in device["versions"].items())
        yield f"{device['devices']} x {device['device']}, {result['date']}; {versions}; {'; '.join(device['nvidia_smi'])}"
    bounds = [f"{figure['what']} {_rate(figure)}" for figure in derive.figures(result, "bandwidth")]
    if bounds:
        yield "Bounds measured: " + ", ".join(bounds)


def _rate(figure: Figure) -> str:
    if "bytes" in figure:
        return f"{figure['bytes'] / figure['seconds'] / 1e9:,.0f} GB/s"
    return f"{figure['flops'] / figure['seconds'] / 1e12:,.0f} TFLOP/s"


def _targets(result: Figure) -> Iterator[Sequence[str]]:
    verdicts = {True: "met", False: "missed", None: "not measured"}
    for target in derive.targets(result):
        yield target.name, _number(target.value, "{:.3f}"), target.wanted, verdicts[target.met]


def _columns(found: Iterator[Figure]) -> list[str]:
    """One for each implementation."""
    return [f"{name} us" for name in dict.fromkeys(figure["implementation"] for figure in found)]


def _decodes(result: Figure) -> Iterator[Sequence[str]]:
    """A line a case: the implementations beside each other, and the share of the first."""
    cases: dict[tuple[int, int], dict[str, Figure]] = {}
    names = list(dict.fromkeys(figure["implementation"] for figure in derive.decodes(result)))
    for figure in derive.decodes(result):
        cases.setdefault((figure["rows"], figure["context"]), {})[figure["implementation"]] = figure
    for (rows, context), found in sorted(cases.items()):
        times = [_number(found.get(name, {}).get("seconds"), "{:.1f}", 1e6) for name in names]
        shares = [_number(found.get(name, {}).get("share"), "{:.0%}") for name in names]
        host = " (host-bound)" if any(figure["host_bound"] for figure in found.values()) else ""
        yield f"{rows} x {context}", *times, " / ".join(shares) + host


def _prefills(result: Figure) -> Iterator[Sequence[str]]:
    for figure in sorted(derive.prefills(result), key=lambda f: (f["context"], f["queries"])):
        yield (
            f"{figure['queries']} on {figure['context']}",
            figure["implementation"],
            f"{figure['seconds'] * 1e3:.3f}",
            f"{figure['flops_per_second'] / 1e12:.0f}",
            _number(figure["share"], "{:.0%}"),
        )


def _steps(result: Figure) -> Iterator[Sequence[str]]:
    theirs = {figure["rows"]: figure for figure in derive.figures(result, "transformers")}
    for section in ("engine", "sharded"):
        for figure in derive.steps(result, section):
            peer = theirs.get(figure["rows"], {})
            yield (
                f"{figure['rows']} x {figure['context']}" + (f", {figure['devices']} GPUs" if figure["devices"] > 1 else ""),
                f"{figure['seconds'] * 1e3:.2f}",
                f"{figure['device']['seconds'] * 1e3:.2f}",
                _number(figure["roofline_seconds"], "{:.2f}", 1e3),
                _number(figure["ratio"], "{:.2f}"),
                f"{figure['host_gap']:.1%}",
                f"{figure['tokens_per_second']:,.0f}",
                _number(peer.get("tokens_per_second"), "{:,.0f}"),
            )


def _engine(result: Figure) -> Iterator[str]:
    for section in ("engine", "sharded"):
        for figure in derive.figures(result, section):
            if figure["what"] == "start":
                yield (
                    f"Start on {figure['devices']}: weights {figure['weights_seconds']:.0f} s, compiling {len(figure['steps'])} "
                    f"steps ({', '.join(figure['steps'])}) {figure['compile_seconds']:.0f} s."
                )
            elif figure["what"] == "first token":
                yield f"First token of {figure['context']} tokens on {figure['devices']}: {figure['seconds'] * 1e3:.1f} ms."


def _writes(result: Figure) -> Iterator[Sequence[str]]:
    for figure in derive.figures(result, "kv_write"):
        rate = figure["bytes"] / figure["seconds"] / 1e9
        yield str(figure["tokens"]), figure["implementation"], f"{figure['seconds'] * 1e6:.1f}", f"{rate:.0f}"


def _tiles(result: Figure) -> Iterator[Sequence[str]]:
    for figure in derive.figures(result, "tiles"):
        change = ", ".join(f"{name} = {value}" for name, value in figure["change"].items()) or "as they are"
        case = f"{figure['rows']} x {figure['context']}" if figure["queries"] == 1 else f"prefill {figure['queries']}"
        yield case, change, f"{figure['seconds'] * 1e6:.1f}"


def _parity(result: Figure) -> Iterator[Sequence[str]]:
    for figure in derive.figures(result, "parity"):
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in figure["verdicts"].items())
        errors = _number(figure["max_abs"], "{:.1e}"), _number(figure["cosine"], "{:.6f}")
        yield figure["operation"], figure["implementation"], figure["dtype"], *errors, verdicts


def _missing(result: Figure) -> Iterator[str]:
    """What has no figure, and why."""
    if "only_xla_after" in result:
        yield f"- a kernel crashed or hung in {result['only_xla_after']}: what came after it ran in XLA"
    for name, section in result["sections"].items():
        for figure in section["figures"]:
            labels = ", ".join(f"{key} {value}" for key, value in figure.items() if key in ("rows", "context", "implementation"))
            if "error" in figure:
                first = (figure["error"]["message"].splitlines() or [""])[0]
                yield f"- {name} {labels}: {figure['error']['type']}: {first}"
            elif "skipped" in figure:
                yield f"- {name}: {figure['skipped']}"
        if "stopped" in section:
            yield f"- {name}: {section['stopped']}"
        if "error" in section:
            yield f"- {name}: {section['error']['type']}: {section['error']['message']}"


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else form.format(value * scale)


def _table(columns: Sequence[str], lines: Iterator[Sequence[str]]) -> str:
    """Nothing for no lines."""
    body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *body]) if body else ""
