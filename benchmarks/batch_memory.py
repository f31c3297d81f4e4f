"""Memory of a job while it reads an input of 2 GB: lines are answered at once, so that nothing but the job itself is there.

    python -m benchmarks.batch_memory [--gb 2] [--line-bytes 2000]

Writes benchmarks/results/batch_memory.json and the plot docs/images/batch_memory.png.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks import machine

mpl.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "batch_memory.json"
PLOT = ROOT / "docs" / "images" / "batch_memory.png"
_WRITTEN_AT_ONCE = 1000


def write_input(path: Path, size: int, line_bytes: int) -> int:
    """Write requests of so many bytes each; returns their number."""
    count = size // line_bytes
    with path.open("w") as file:
        for first in range(0, count, _WRITTEN_AT_ONCE):
            file.writelines(_line(number, line_bytes) for number in range(first, min(first + _WRITTEN_AT_ONCE, count)))
    return count


def _line(number: int, size: int) -> str:
    body = {"model": "m", "max_tokens": 20, "prompt": ""}
    line = {"custom_id": f"request-{number}", "method": "POST", "url": "/v1/completions", "body": body}
    words = f"{number:>10} ".replace(" ", "x")
    room = size - len(json.dumps(line)) - 1
    body["prompt"] = (words * (room // len(words) + 1))[:room]
    return json.dumps(line) + "\n"


def plot(report: dict[str, Any]) -> None:
    """Memory over lines."""
    figure, axes = plt.subplots(figsize=(7, 3))
    axes.plot([done / 1e6 for done, _ in report["rss"]], [size / 2**20 for _, size in report["rss"]])
    axes.set(xlabel="lines answered, millions", ylabel="memory, MiB", ylim=(0, None))
    axes.set_title(f"An input of {report['input_gb']:g} GB: memory of the job", loc="left", fontsize=10)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(PLOT, dpi=110)


def main() -> None:
    """Run in a process of its own, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--line-bytes", type=int, default=2000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_input(Path(name) / "in.jsonl", int(given.gb * 1e9), given.line_bytes)
        command = [sys.executable, "-m", "benchmarks.batch_reading", name]
        found = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    report = {**machine.describe(), "command": " ".join(["python -m benchmarks.batch_memory", *sys.argv[1:]])}
    report |= {"input_gb": given.gb, "line_bytes": given.line_bytes, **found}
    RESULTS.write_text(json.dumps(report) + "\n")
    plot(report)
    sizes = [size / 2**20 for _, size in report["rss"]]
    print(f"{report['lines']:,} lines in {report['seconds']} s; memory {min(sizes):.0f} to {max(sizes):.0f} MiB")


if __name__ == "__main__":
    main()
