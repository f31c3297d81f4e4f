"""Decode speed and memory of matrices in fewer bits beside bfloat16, in one run, in turns.

    python -m benchmarks.quantized [--model llama150m | moe700m] [--rows 1 8 16 32] [--repeats 3] [--output FILE]

Writes benchmarks/results/quantized.json, or quantized_moe.json of the model with experts, unless told otherwise, and prints a
table. Speeds are of the model of `benchmarks.llama150m` or `benchmarks.moe700m` with dummy weights, the engine in this process;
a row's decode speed is what is left after the prefill, as in `benchmarks.engine`. Weights are the bytes that a device holds of
them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import llama150m, machine, moe700m
from benchmarks.in_process import InProcess
from jaxserve.config.fields import Quantization

PROMPT, OUTPUT = 32, 128
SCHEMES: tuple[Quantization, ...] = ("none", "int8", "w8a8", "int4")
RESULTS = Path(__file__).parent / "results"


class Model(NamedTuple):
    """A model to measure: what it is called, its config.json, and the file of its results."""

    title: str
    config: Mapping[str, Any]
    results: str


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "llama150m": Model("Llama 150M", llama150m.CONFIG, "quantized.json"),
        "moe700m": Model("Qwen3-MoE 700M", moe700m.CONFIG, "quantized_moe.json"),
    }
)


def decode_speed(engine: InProcess, rows: int) -> float:
    """Tokens a second."""
    first = engine.seconds(rows, 1)
    return rows * (OUTPUT - 1) / (engine.seconds(rows, OUTPUT) - first)


def speeds(engines: dict[Quantization, InProcess], rows: int, repeats: int) -> dict[Quantization, float]:
    """Median decode speeds, measured in turns."""
    for engine in engines.values():
        engine.seconds(rows, 2)
    found: dict[Quantization, list[float]] = {name: [] for name in engines}
    for _ in range(repeats):
        for name, engine in engines.items():
            found[name].append(decode_speed(engine, rows))
    return {name: machine.median(values) for name, values in found.items()}


def main() -> None:
    """Run and write the results."""
    arguments = _arguments()
    model = MODELS[arguments.model]
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.quantized")}
    report |= {"model": f"{model.title}, dummy weights, bfloat16", "prompt": PROMPT, "output": OUTPUT}
    with tempfile.TemporaryDirectory() as scratch:
        directory = llama150m.write_config(Path(scratch) / arguments.model, model.config)
        engines = {name: InProcess(directory, "bfloat16", max(arguments.rows), PROMPT, OUTPUT, name) for name in SCHEMES}
        report["weights"] = {name: engine.weight_bytes for name, engine in engines.items()}
        report["decode"] = {str(rows): speeds(engines, rows, arguments.repeats) for rows in arguments.rows}
    output = arguments.output or RESULTS / model.results
    output.write_text(json.dumps(report, indent=1) + "\n")
    Console().print(table(report))


def table(report: dict[str, Any]) -> Table:
    """Tokens a second and bytes, and their ratios to bfloat16's."""
    shown = Table(title=f"{report['model']}: decode, output tokens/s", title_justify="left")
    for column in ("rows", *SCHEMES):
        shown.add_column(column, justify="right")
    for rows, found in report["decode"].items():
        shown.add_row(rows, *(f"{found[name]:.1f} ({found[name] / found['none']:.2f}x)" for name in SCHEMES))
    held = report["weights"]
    shown.add_row("weights, MB", *(f"{held[name] / 1e6:.0f} ({held[name] / held['none']:.2f}x)" for name in SCHEMES))
    return shown


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="llama150m")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
