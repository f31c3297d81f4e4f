"""What larger pages cost in prefix hits, on the simulator: a prefix is shared as far as it fills pages.

    python -m benchmarks.page_sizes [--requests 2000]

llama-3-8b on one H100. Each load has prompts with one of a few shared prefixes and an end of their own. The simulator knows
nothing of what a kernel gains by larger pages: times show what is lost, and nothing else. Writes
benchmarks/results/page_sizes.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import machine

RESULTS = Path(__file__).parent / "results" / "page_sizes.json"
SIZES = (16, 32, 64)
LOADS = {
    "short prefixes": {"prefixes": 200, "prefix-tokens": 150, "prompt-tokens": 100, "rate": 25},
    "medium prefixes": {"prefixes": 50, "prefix-tokens": 400, "prompt-tokens": 300, "rate": 20},
    "long prefixes": {"prefixes": 20, "prefix-tokens": 1000, "prompt-tokens": 600, "rate": 12},
}


def simulated(load: dict[str, int], page_size: int, requests: int) -> dict[str, Any]:
    """What the command says of a load."""
    given = [f"--{name}={value}" for name, value in (load | {"page-size": page_size, "requests": requests}).items()]
    command = [sys.executable, "-m", "jaxserve.simulate", "llama-3-8b", "--hardware", "h100", *given]
    with tempfile.TemporaryDirectory() as directory:
        written = Path(directory) / "result.json"
        subprocess.run([*command, "--json", str(written)], check=True, capture_output=True)
        result: dict[str, Any] = json.loads(written.read_text())
    return {
        "page_size": page_size,
        "prefix_hit_rate": result["engines"]["prefix_hit_rate"],
        "ttft_p50_s": result["all"]["ttft"]["p50"],
        "ttft_p99_s": result["all"]["ttft"]["p99"],
        "itl_mean_s": result["all"]["itl"]["mean"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page_sizes")
    parser.add_argument("--requests", type=int, default=2000)
    requests = parser.parse_args().requests
    figures = {}
    for name, load in LOADS.items():
        figures[name] = [simulated(load, size, requests) for size in SIZES]
        for figure in figures[name]:
            print(
                f"{name}, pages of {figure['page_size']}: {figure['prefix_hit_rate']:.3f} of prompt tokens hit, "
                f"first token after {1000 * figure['ttft_p50_s']:.1f} ms (p99 {1000 * figure['ttft_p99_s']:.0f})"
            )
    result = {
        "command": machine.command("benchmarks.page_sizes"),
        "machine": machine.describe(),
        "loads": LOADS,
        "figures": figures,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
