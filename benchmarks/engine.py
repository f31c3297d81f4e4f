"""Prefill and decode speed of the engine beside HF transformers' static batch, in one run, in turns.

    python -m benchmarks.engine --transformers-python PATH [--rows 1 8 16 32] [--repeats 3]

PATH is an interpreter with torch and transformers (extra "parity"); without one only jaxserve is measured. Writes
benchmarks/results/engine.json and prints a table. A row's decode speed is what is left after the prefill:
rows * (output - 1) / (seconds of the whole - seconds of the same prompts with one output token).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import llama150m, machine
from benchmarks.in_process import InProcess
from benchmarks.peer import Peer

PROMPT, OUTPUT = 128, 128
RESULTS = Path(__file__).parent / "results" / "engine.json"


class Transformers:
    """transformers' generate, in a process of its own."""

    def __init__(self, python: str, directory: Path, dtype: str, threads: int) -> None:
        self._peer = Peer(python, "peer_transformers.py", str(directory), dtype, str(threads))
        self.versions: dict[str, str] = self._peer.hello["versions"]

    def seconds(self, rows: int, output: int) -> float:
        """Wall time of `rows` random prompts with `output` tokens each."""
        return float(self._peer.ask({"rows": rows, "prompt": PROMPT, "output": output})["seconds"])

    def close(self) -> None:
        """End the process."""
        self._peer.close()


def measure(engines: dict[str, InProcess | Transformers], rows: int, repeats: int) -> dict[str, dict[str, float]]:
    """Median speeds of each engine, measured in turns: tokens a second of prefill and decode."""
    prefill: dict[str, list[float]] = {name: [] for name in engines}
    decode: dict[str, list[float]] = {name: [] for name in engines}
    for engine in engines.values():
        engine.seconds(rows, 2)
    for _ in range(repeats):
        for name, engine in engines.items():
            first = engine.seconds(rows, 1)
            whole = engine.seconds(rows, OUTPUT)
            prefill[name].append(rows * PROMPT / first)
            decode[name].append(rows * (OUTPUT - 1) / (whole - first))
    return {name: {"prefill": machine.median(prefill[name]), "decode": machine.median(decode[name])} for name in engines}


def bounds(dtype: str, rows: int, bandwidth: float, rate: float) -> dict[str, float]:
    """Tokens a second if only the bytes that must be read, or only the FLOPs, took time."""
    size = 2 if dtype == "bfloat16" else 4
    context = PROMPT + OUTPUT / 2
    step_bytes = size * (llama150m.WEIGHTS_READ + rows * context * llama150m.KV_VALUES_PER_TOKEN)
    step_flops = 2 * rows * llama150m.WEIGHTS_READ
    prompt_flops = 2 * (PROMPT * llama150m.LAYER_WEIGHTS + llama150m.HEAD_WEIGHTS)  # logits of the last token only
    return {"decode": rows / max(step_bytes / bandwidth, step_flops / rate), "prefill": PROMPT * rate / prompt_flops}


def main() -> None:
    """Run and write the results."""
    arguments = _arguments()
    report: dict[str, Any] = {**machine.describe(), "command": " ".join(["python -m benchmarks.engine", *sys.argv[1:]])}
    report |= {"model": "Llama 150M, dummy weights", "prompt": PROMPT, "output": OUTPUT, "runs": []}
    with tempfile.TemporaryDirectory() as scratch:
        directory = llama150m.write_config(Path(scratch) / "llama150m")
        for dtype in arguments.dtypes:
            bandwidth, rate = machine.read_bandwidth(), machine.matmul_rate(dtype)
            engines: dict[str, InProcess | Transformers] = {
                "jaxserve": InProcess(directory, dtype, max(arguments.rows), PROMPT, OUTPUT)
            }
            if arguments.transformers_python:
                peer = Transformers(arguments.transformers_python, directory, dtype, report["cores"])
                report["versions"] |= peer.versions
                engines["transformers"] = peer
            for rows in arguments.rows:
                run = {
                    "dtype": dtype,
                    "rows": rows,
                    "speeds": measure(engines, rows, arguments.repeats),
                    "bounds": bounds(dtype, rows, bandwidth, rate),
                    "read_bandwidth": bandwidth,
                    "matmul_rate": rate,
                }
                report["runs"].append(run)
                print(json.dumps(run), flush=True)
            if arguments.transformers_python:
                peer.close()
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    Console().print(table(report))


def table(report: dict[str, Any]) -> Table:
    """Speeds, ratios and shares of the bounds."""
    shown = Table(title=f"{report['model']}, prompt {PROMPT}, output {OUTPUT}: output tokens/s", title_justify="left")
    for column in ("dtype", "rows", "phase", "jaxserve", "transformers", "ratio", "bound", "share of bound"):
        shown.add_column(column, justify="right")
    for run in report["runs"]:
        for phase in ("prefill", "decode"):
            ours, bound = run["speeds"]["jaxserve"][phase], run["bounds"][phase]
            theirs = run["speeds"].get("transformers", {}).get(phase)
            cells = (f"{theirs:.0f}", f"{ours / theirs:.2f}x") if theirs else ("-", "-")
            shown.add_row(run["dtype"], str(run["rows"]), phase, f"{ours:.0f}", *cells, f"{bound:.0f}", f"{ours / bound:.0%}")
    return shown


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transformers-python", help="interpreter that has torch and transformers")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
