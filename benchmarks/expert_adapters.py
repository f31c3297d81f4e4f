"""Adapters of routed experts: decoding with 1 and 8 of them in a batch beside decoding without, of a small model with experts.

    python -m benchmarks.expert_adapters [--streams 16 32] [--adapters 0 1 8] [--rounds 7] [--rank 16] [--tokens 64]

As `benchmarks.adapters`, whose columns the rows have; the model is `benchmarks.moe700m`, and there are 8 slots. Adapters are of
all projections, those of all experts of all layers among them. `without_experts` are rows of the same slots with adapters of
attention alone, in an engine whose adapters may not change experts.

Writes benchmarks/results/expert_adapters.json.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.adapters import begun, make_engine, throughput, write_adapter
from benchmarks.llama150m import write_config
from benchmarks.moe700m import CONFIG

RESULTS = Path(__file__).parent / "results" / "expert_adapters.json"
SLOTS = 8


def main() -> None:
    given, report = begun("benchmarks.expert_adapters", __doc__, [0, 1, SLOTS], RESULTS)
    with tempfile.TemporaryDirectory() as scratch:
        model, rows = write_config(Path(scratch) / "moe700m", CONFIG), max(given.streams)
        plain = make_engine(model, rows)
        for name, experts in (("with_experts", True), ("without_experts", False)):
            adapters = [
                write_adapter(Path(scratch) / f"{name}{number}", given.rank, number, CONFIG, experts=experts)
                for number in range(max(given.adapters))
            ]
            slots = {"max_loras": SLOTS, "max_cpu_loras": SLOTS, "max_lora_rank": given.rank}
            adapted = make_engine(model, rows, enable_lora=True, lora_experts=experts, **slots)
            report[name] = {"slots_megabytes": round(adapted.report.memory.adapters / 1e6, 1), "throughput": []}
            for streams in given.streams:
                for count in given.adapters:
                    row = throughput(plain, adapted, adapters[:count], streams, given.rounds, given.tokens)
                    report[name]["throughput"].append(row)
                    given.out.write_text(json.dumps(report, indent=1) + "\n")  # after each: they take long


if __name__ == "__main__":
    main()
