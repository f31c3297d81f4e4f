"""The results as Markdown, for docs/performance.md, and as plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks.gpu import all_reduce, derive, plots, predict
from benchmarks.gpu.tasks import Figure

LABELS = (
    "what",
    "call",
    "operation",
    "shape",
    "rows",
    "context",
    "choice",
    "implementation",
    "dtype",
    "bytes",
    "way",
)  # of what failed
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
        _table(("decode attention, other shapes", "implementation", "us", "share of copy"), _shapes(result)),
        _table(("prefill attention", "implementation", "ms", "TFLOP/s", "of dense"), _prefills(result)),
        _table(
            ("8B decode", "ms a step", "device ms", "roofline ms", "ratio", "host gap", "tokens/s", "transformers"),
            _steps(result),
        ),
        "\n".join(_engine(result)),
        _table(("tuning", "rows", "layers", "compiling s", "step ms", "files of results"), _tuning(result)),
        _table(("expected beforehand", "ms", "measured ms", "measured / expected"), _expected(result)),
        _table(("all-reduce, MB", *all_reduce.WAYS, "faster"), _all_reduces(result)),
        _table(("kv_write tokens", "implementation", "us", "GB/s"), _writes(result)),
        _table(("products of an MLP, rows", "numbers", "us", "GB/s"), _rounded(result)),
        _table(("tiles", "change", "us"), _tiles(result)),
        _table(("parity", "implementation", "dtype", "max abs", "cosine", "verdicts"), _parity(result)),
        _table(("racecheck", "implementation", "hazards", "errors", "warnings", "first"), _races(result)),
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


def _shapes(result: Figure) -> Iterator[Sequence[str]]:
    for figure in derive.shapes(result):
        yield figure["shape"], figure["implementation"], f"{figure['seconds'] * 1e6:.1f}", _number(figure["share"], "{:.0%}")


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
                f"{figure['rows']} x {figure['context']}"
                + (f", {figure['devices']} GPUs" if figure["devices"] > 1 else "")
                + (f", {figure['choice']}" if figure["choice"] != "greedy" else ""),
                f"{figure['seconds'] * 1e3:.2f}",
                f"{figure['device']['seconds'] * 1e3:.2f}",
                _number(figure["roofline_seconds"], "{:.2f}", 1e3),
                _number(figure["ratio"], "{:.2f}"),
                _number(figure["host_gap"], "{:.1%}"),
                f"{figure['tokens_per_second']:,.0f}",
                _number(peer.get("tokens_per_second"), "{:,.0f}"),
            )


def _expected(result: Figure) -> Iterator[Sequence[str]]:
    """What was predicted of this device, beside what it showed."""
    for device in derive.figures(result, "device"):
        expected = predict.of_device(device["device"])
        for section in dict.fromkeys(one.section for one in expected):
            for figure in derive.figures(result, section):
                one = predict.find(section, figure, expected)
                if one is not None:
                    case = ", ".join(str(value) for value in one.case.values())
                    ratio = figure["seconds"] / one.seconds
                    yield f"{section}: {case}", f"{one.seconds * 1e3:.3f}", f"{figure['seconds'] * 1e3:.3f}", f"{ratio:.2f}"


def _engine(result: Figure) -> Iterator[str]:
    for section in ("engine", "sharded"):
        for figure in derive.figures(result, section):
            if figure["what"] in LINES:
                yield LINES[figure["what"]](figure)
    for figure in derive.figures(result, "saved"):
        yield _saved(figure)
    for figure in derive.figures(result, "server"):
        if figure["what"] == "streams":
            yield _streams(figure)


def _streams(figure: Figure) -> str:
    first, each = (figure[name] for name in ("first_token_seconds", "seconds_per_token"))
    return (
        f"Behind HTTP, {figure['clients']} clients of {figure['context']} and {figure['output']} tokens: "
        f"{figure['tokens_per_second']:,.0f} tokens/s; first token {first['p50'] * 1e3:.0f} ms (p99 {first['p99'] * 1e3:.0f}), "
        f"then {each['p50'] * 1e3:.2f} ms a token (p99 {each['p99'] * 1e3:.2f})."
    )


def _start(figure: Figure) -> str:
    steps = ", ".join(figure["steps"])
    return (
        f"Start on {figure['devices']}: weights {figure['weights_seconds']:.0f} s, "
        f"compiling {len(figure['steps'])} steps ({steps}) {figure['compile_seconds']:.0f} s."
    )


def _alternating(figure: Figure) -> str:
    gap = derive.host_gap(figure)
    return (
        f"In turns, {figure['rows']} rows that decode, and they with {figure['prompt']} tokens of a prompt: "
        f"{figure['seconds'] * 1e3:.2f} ms for both, the device {figure['device']['seconds'] * 1e3:.2f} ms, "
        f"host gap {_number(gap, '{:.1%}')}."
    )


def _launches(figure: Figure) -> str:
    return (
        f"A step of {figure['rows']} rows is {figure['programs']} programs: {figure['command_buffers']} command buffers and "
        f"{figure['single']} launches beside them, {figure['kernels']} kernels."
    )


LINES: Mapping[str, Callable[[Figure], str]] = MappingProxyType(
    {
        "start": _start,
        "first token": lambda f: f"First token of {f['context']} tokens on {f['devices']}: {f['seconds'] * 1e3:.1f} ms.",
        "alternating": _alternating,
        "launches": _launches,
        "save": lambda f: f"Saved: {f['programs']} programs, {f['bytes'] / 1e6:.1f} MB.",
    }
)
"""What is said of the engine in a line, by what was measured."""


def _saved(figure: Figure) -> str:
    if figure["what"] == "start":
        compiled = ", ".join(figure["compiled"]) or "none"
        programs = f"{figure['loaded']} loaded, compiled: {compiled}"
        return f"From saved programs ({programs}): {figure['compile_seconds']:.1f} s in place of compiling."
    if figure["what"] == "tokens":
        return f"Its tokens are the same in {figure['same']} of {figure['sequences']} sequences."
    return f"Its step of {figure['rows']} x {figure['context']} takes the device {figure['seconds'] * 1e3:.2f} ms."


def _tuning(result: Figure) -> Iterator[Sequence[str]]:
    for figure in [one for name in ("autotune", "autotune_taken") for one in derive.figures(result, name)]:
        files = f"{figure['files_before']} before, {figure['files']} after"
        times = f"{figure['compile_seconds']:.1f}", f"{figure['seconds'] * 1e3:.2f}"
        yield figure["variant"], str(figure["rows"]), str(figure["layers"]), *times, files


def _all_reduces(result: Figure) -> Iterator[Sequence[str]]:
    """A line a size, in microseconds."""
    found = derive.figures(result, "all_reduce")
    for devices, size in dict.fromkeys((figure["devices"], figure["bytes"]) for figure in found):
        times = {f["way"]: f["seconds"] * 1e6 for f in found if (f["devices"], f["bytes"]) == (devices, size)}
        columns = [_number(times.get(way), "{:.1f} us") for way in all_reduce.WAYS]
        yield f"{size / 1e6:.2f} on {devices}", *columns, min(times, key=lambda way: times[way])


def _writes(result: Figure) -> Iterator[Sequence[str]]:
    for figure in derive.figures(result, "kv_write"):
        rate = figure["bytes"] / figure["seconds"] / 1e9
        yield str(figure["tokens"]), figure["implementation"], f"{figure['seconds'] * 1e6:.1f}", f"{rate:.0f}"


def _rounded(result: Figure) -> Iterator[Sequence[str]]:
    for figure in derive.figures(result, "rounded"):
        rate = figure["bytes"] / figure["seconds"] / 1e9
        numbers = "bfloat16" if figure["scheme"] == "none" else figure["scheme"]
        yield str(figure["rows"]), numbers, f"{figure['seconds'] * 1e6:.1f}", f"{rate:.0f}"


def _tiles(result: Figure) -> Iterator[Sequence[str]]:
    for figure in derive.figures(result, "tiles"):
        change = ", ".join(f"{name} = {value}" for name, value in figure["change"].items()) or "as they are"
        case = f"{figure['rows']} x {figure['context']}" if figure["queries"] == 1 else f"prefill {figure['queries']}"
        yield case, change, f"{figure['seconds'] * 1e6:.1f}"


def _parity(result: Figure) -> Iterator[Sequence[str]]:
    for figure in derive.figures(result, "parity") + derive.figures(result, "parity_xla"):
        counts = {**figure["verdicts"], "missed": figure["missed"]}
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
        errors = _number(figure["max_abs"], "{:.1e}"), _number(figure["cosine"], "{:.6f}")
        yield figure["operation"], figure["implementation"], figure["dtype"], *errors, verdicts


def _races(result: Figure) -> Iterator[Sequence[str]]:
    for figure in derive.figures(result, "racecheck"):
        counts = (str(figure[name]) for name in ("hazards", "errors", "warnings"))
        yield figure["call"], figure["implementation"], *counts, (figure["races"] or ["-"])[0]


def _missing(result: Figure) -> Iterator[str]:
    """What has no figure, and why."""
    if "only_xla_after" in result:
        yield f"- a kernel crashed or hung in {result['only_xla_after']}: what came after it ran in XLA"
    for name, section in result["sections"].items():
        for figure in section["figures"]:
            labels = ", ".join(f"{key} {value}" for key, value in figure.items() if key in LABELS)
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
