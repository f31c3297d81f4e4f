"""What --deterministic costs on a CPU: tokens a second with it and without, in one run, in turns.

    python -m benchmarks.deterministic [--rows 1 4 16] [--repeats 5] [--output FILE]

Writes benchmarks/results/deterministic.json unless told otherwise, and prints a table. The model is that of
`benchmarks.llama150m` in bfloat16 with dummy weights, both engines in this process. Prefill is prompt tokens a second of all rows
at once with one output token each; decode is what is left of longer outputs after that. A cost is the median of those of the
turns, in each of which the two engines follow one another; 1.2 is that the mode takes 1.2 times as long. `cost_cpu` is the
same of the process's CPU time, which says more where other processes share the cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import llama150m, machine
from benchmarks.in_process import InProcess

PROMPT, OUTPUT = 128, 64
RESULTS = Path(__file__).parent / "results" / "deterministic.json"
MODES = ("usual", "deterministic")
KINDS = ("prefill", "decode")


class Turn(NamedTuple):
    """Seconds that one engine took for prefill and for decode: on the clock, and of its threads' CPU time."""

    wall: dict[str, float]
    cpu: dict[str, float]


def measure(engine: InProcess, rows: int) -> Turn:
    """Run a prefill, and a prefill with a decode behind it."""
    wall, cpu = [], []
    for output in (1, OUTPUT):
        began = time.process_time()
        wall.append(engine.seconds(rows, output))
        cpu.append(time.process_time() - began)
    return Turn(*({"prefill": first, "decode": both - first} for first, both in (wall, cpu)))


def compare(engines: dict[str, InProcess], rows: int, repeats: int) -> dict[str, Any]:
    """Median speeds of each mode, and median costs, by kind."""
    for engine in engines.values():
        engine.seconds(rows, 2)
    turns = []
    for turn in range(repeats):
        order = MODES if turn % 2 == 0 else MODES[::-1]
        turns.append({mode: measure(engines[mode], rows) for mode in order})
    tokens = {"prefill": rows * PROMPT, "decode": rows * (OUTPUT - 1)}
    found: dict[str, Any] = {
        mode: {kind: machine.median([tokens[kind] / turn[mode].wall[kind] for turn in turns]) for kind in KINDS} for mode in MODES
    }
    for name, times in (("cost", "wall"), ("cost_cpu", "cpu")):
        each = [[getattr(turn[mode], times) for mode in MODES] for turn in turns]
        found[name] = {kind: machine.median([asked[kind] / usual[kind] for usual, asked in each]) for kind in KINDS}
    return found


def main() -> None:
    """Run and write the results."""
    arguments = _arguments()
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.deterministic")}
    report |= {"model": "Llama 150M, dummy weights, bfloat16", "prompt": PROMPT, "output": OUTPUT}
    with tempfile.TemporaryDirectory() as scratch:
        directory = llama150m.write_config(Path(scratch) / "llama150m")
        engines = {
            mode: InProcess(directory, "bfloat16", max(arguments.rows), PROMPT, OUTPUT, deterministic=mode == "deterministic")
            for mode in MODES
        }
        report["rows"] = {str(rows): compare(engines, rows, arguments.repeats) for rows in arguments.rows}
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    Console().print(table(report))


def table(report: dict[str, Any]) -> Table:
    """Tokens a second of both modes, and costs."""
    shown = Table(title=f"{report['model']}, tokens/s, and costs", title_justify="left")
    for column in ("rows", "", *MODES, "cost", "of CPU time"):
        shown.add_column(column, justify="right")
    for rows, found in report["rows"].items():
        for kind in KINDS:
            costs = (f"{found[name][kind]:.2f}x" for name in ("cost", "cost_cpu"))
            shown.add_row(rows, kind, *(f"{found[mode][kind]:.1f}" for mode in MODES), *costs)
    return shown


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
