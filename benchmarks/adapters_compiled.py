"""What adapters add to a decode step compiled for an H100 that is not here: kernels and bytes of a layer, with and without.

    python -m benchmarks.adapters_compiled [--model llama-3-8b] [--gpus 1] [--rows 64] [--slots 8] [--rank 16]

A layer's are what two layers have more than one. Needs jax-cuda13-plugin. Writes benchmarks/results/adapters_compiled.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import machine
from jaxserve.aot.hlo import Module
from jaxserve.aot.shapes import decoder
from jaxserve.aot.target import Target
from jaxserve.aot.thunks import read_launches
from jaxserve.config.lora import LoraShape
from jaxserve.executor.compile_cache import nothing_kept
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.memory import device_bytes
from jaxserve.executor.options import ExecutorOptions
from jaxserve.step.buckets import Bucket
from sharding import make_mesh

RESULTS = Path(__file__).parent / "results" / "adapters_compiled.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--experts", action="store_true", help="adapters change routed experts, too")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    shape = LoraShape(given.slots, given.rank, given.experts)
    found: dict[str, Any] = {}
    for name, adapted in (("plain", False), ("adapted", True)):
        one, two = (_step(given.model, layers, given.gpus, given.rows, shape, adapted=adapted) for layers in (1, 2))
        found[name] = {key: two[key] - one[key] for key in one}
        print(name, found[name], flush=True)
    report = {
        "machine": machine.describe(),
        "command": machine.command("benchmarks.adapters_compiled"),
        "model": given.model,
        "target": f"h100:{given.gpus}",
        "rows": given.rows,
        "slots": given.slots,
        "rank": given.rank,
        "experts": given.experts,
        "a_layer": found,
    }
    given.out.write_text(json.dumps(report, indent=1) + "\n")


def _step(model: str, layers: int, gpus: int, rows: int, shape: LoraShape, *, adapted: bool) -> dict[str, int]:
    """Kernels and all-reduces of a decode step, and what a device holds of weights and adapters."""
    options = ExecutorOptions(
        max_num_seqs=rows,
        max_num_batched_tokens=512,
        max_model_len=4096,
        num_pages=4096,
        page_size=16,
        dtype="bfloat16",
        kv_dtype="bfloat16",
        adapters=shape,
    )
    mesh = make_mesh(gpus, Target.parse(f"h100:{gpus}").devices())
    lowering = Lowering(decoder(model, layers), mesh, options)
    with tempfile.TemporaryDirectory() as folder:
        with nothing_kept():
            program = lowering.forward(Bucket(rows, rows, adapted=adapted)).compile({"xla_dump_to": folder})
        launches, module = read_launches(Path(folder)), Module.parse(program.as_text())
    lines = [line for lines in module.computations.values() for line in lines]
    return {
        "kernels": launches.kernels,
        "all_reduces": sum(line.opcode.startswith("all-reduce") for line in lines),
        "weight_bytes": device_bytes(lowering.params),
        "adapter_bytes": device_bytes(lowering.loras) if adapted else 0,
    }


if __name__ == "__main__":
    main()
