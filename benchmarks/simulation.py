"""How fast 30,000 requests are simulated, and in how much memory: the figures of docs/simulator.md.

    python -m benchmarks.simulation

Each run is a process of its own, `python -m jaxserve.simulate` with the arguments that the results name. Writes
benchmarks/results/simulation.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import machine

RESULTS = Path(__file__).parent / "results" / "simulation.json"
SPEED = "--requests 30000 --max-num-seqs 256 --max-num-batched-tokens 2048 --rate"
RUNS = (f"{SPEED} 20", f"{SPEED} 40")


def simulate(arguments: str) -> dict[str, Any]:
    """One run of the simulator: its main figures, wall seconds and peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "jaxserve.simulate", "llama-3-8b", *arguments.split(), "--json", str(report)]
        start = time.perf_counter()
        peak = 0
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                peak = max(peak, _peak_memory(process.pid))
                time.sleep(0.1)
        seconds = time.perf_counter() - start
        if process.returncode != 0:
            raise SystemExit(f"jaxserve.simulate {arguments} exited with {process.returncode}")
        figures = json.loads(report.read_text())
    return {
        "arguments": f"llama-3-8b {arguments}",
        "seconds": round(seconds, 1),
        "peak_memory_mib": peak // 1024,
        "virtual_seconds": figures["seconds"],
        "finished": figures["all"]["finished"],
        "refused": figures["all"]["refused"],
        "ttft_s": {name: figures["all"]["ttft"][name] for name in ("p50", "p99")},
        "goodput_tokens_per_s": figures["all"]["goodput_tokens_per_s"],
        "steps": figures["engines"]["steps"],
        "mean_rows": figures["engines"]["mean_rows"],
    }


def _peak_memory(pid: int) -> int:
    """KiB the process has held at most; not getrusage's figure, which a child inherits from the process that forked it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def main() -> None:
    """Run and write the results."""
    report: dict[str, Any] = {**machine.describe(), "command": "python -m benchmarks.simulation", "runs": []}
    for arguments in RUNS:
        report["runs"].append(simulate(arguments))
        print(json.dumps(report["runs"][-1]), flush=True)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
