"""What quantizing the bundled model costs, scheme by scheme: python -m benchmarks.quantize_quality.

Writes benchmarks/results/quantize_quality.json. The text is that of the tasks `pico_text_seen` and `pico_text_unseen`; perplexity
is of the half of its windows that nothing was chosen or fitted by. Every scheme is measured with everything rounded, and after an
audit with a budget.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import command, describe
from jaxserve import quantize
from jaxserve.weights.manifest import Quality, read_manifest

RESULTS = Path(__file__).parent / "results" / "quantize_quality.json"
TASKS = Path(quantize.__file__).parent / "evaluation" / "tasks"
BUDGETS = {"fp8": 0.5, "int8": 0.5, "w8a8": 0.5, "w4a16": 2.0, "w4a16-asym": 2.0}
GROUPS = ["--group-size", "64"]  # 128 does not divide the inputs of pico's MLP


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemes", nargs="+", default=list(BUDGETS), choices=list(BUDGETS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch) / "text.jsonl"
        text.write_text("".join((TASKS / f"text_{name}.jsonl").read_text(encoding="utf-8") for name in ("unseen", "seen")))
        results = {scheme: measured(scheme, text, Path(scratch)) for scheme in arguments.schemes}
    document = {
        "command": command("benchmarks.quantize_quality"),
        "machine": describe(),
        "model": "pico",
        "text": "pico_text_unseen, pico_text_seen",
        "schemes": results,
    }
    arguments.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def measured(scheme: str, text: Path, scratch: Path) -> dict[str, Any]:
    """Everything rounded, and what the budget leaves of it."""
    budget = BUDGETS[scheme]
    options = ["--scheme", scheme, "--calibration", str(text), *(GROUPS if scheme.startswith("w4a16") else [])]
    audit = ["--audit", "--budget", str(budget)]
    return {
        "budget_percent": budget,
        "everything": run(scratch / f"{scheme}-everything", options),
        "audited": run(scratch / f"{scheme}-audited", [*options, *audit]),
    }


def run(output: Path, options: list[str]) -> dict[str, Any]:
    started = time.monotonic()
    if quantize.main(["pico", str(output), *options]) != 0:
        raise SystemExit(f"{output.name} was not written")
    manifest = read_manifest(output)
    assert manifest is not None
    assert isinstance(manifest.quality, Quality)
    quality = manifest.quality
    return {
        "perplexity_before": quality.perplexity_before,
        "perplexity_after": quality.perplexity_after,
        "increase_percent": quality.increase_percent,
        "tokens": quality.tokens,
        "kept": quality.kept,
        "largest_relative_error": max(error.relative for error in quality.errors.values()),
        "weights_bytes": sum(path.stat().st_size for path in output.glob("*.safetensors")),
        "seconds": time.monotonic() - started,
    }


if __name__ == "__main__":
    main()
