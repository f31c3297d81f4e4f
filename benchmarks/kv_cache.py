"""Decode speed and bytes of a KV cache in 8 bits beside bfloat16, by context, in one run, in turns.

    python -m benchmarks.kv_cache [--rows 1 8] [--contexts 1024 4096 8192] [--outputs 64] [--repeats 3] [--output FILE]

Writes benchmarks/results/kv_cache.json unless told otherwise, and prints a table. Speeds are of the model of
`benchmarks.llama150m` with dummy weights in bfloat16, the engine in this process, of rows whose prompts are in the prefix cache.
Bytes are those of a cache that holds every row at that context, scales included. Ratios hold on a busy machine; rates do not.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import llama150m, machine
from jaxserve import LLM, SamplingParams
from jaxserve.config.fields import KvCacheDType
from jaxserve.types import TokensPrompt

ROWS, CONTEXTS, OUTPUTS = (1, 8), (1024, 4096, 8192), 64
CACHES: tuple[KvCacheDType, ...] = ("bfloat16", "fp8", "int8")
RESULTS = Path(__file__).parent / "results" / "kv_cache.json"


def write_config(directory: Path, longest: int) -> Path:
    """The model, made for contexts of so many tokens."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(llama150m.CONFIG | {"max_position_embeddings": longest}))
    return directory


class Engine:
    """The engine in this process, with `rows` random prompts of `prompt` tokens, which are in its prefix cache."""

    def __init__(self, directory: Path, kind: KvCacheDType, rows: int, prompt: int, outputs: int) -> None:
        tokens = np.random.default_rng(0).integers(3, 32000, (rows, prompt)).tolist()
        self._prompts: list[TokensPrompt] = [{"prompt_token_ids": ids} for ids in tokens]
        self._llm = LLM(
            model=str(directory),
            load_format="dummy",
            dtype="bfloat16",
            kv_cache_dtype=kind,
            max_model_len=prompt + outputs,
            max_num_seqs=rows,
        )
        self.cache_bytes = self._llm.report.memory.kv_cache
        self.seconds(2)

    def seconds(self, outputs: int) -> float:
        """Wall time of so many more tokens for each prompt."""
        start = time.perf_counter()
        self._llm.generate(self._prompts, SamplingParams(temperature=0.0, max_tokens=outputs, ignore_eos=True))
        return time.perf_counter() - start

    def decode_speed(self, outputs: int) -> float:
        """Tokens a second, after the first of each prompt."""
        first = self.seconds(1)
        return len(self._prompts) * (outputs - 1) / (self.seconds(outputs) - first)


def measure(directory: Path, rows: int, context: int, outputs: int, repeats: int) -> dict[str, Any]:
    """Median decode speeds, and bytes, by the cache's dtype."""
    engines = {kind: Engine(directory, kind, rows, context - outputs, outputs) for kind in CACHES}
    found: dict[KvCacheDType, list[float]] = {kind: [] for kind in CACHES}
    for _ in range(repeats):
        for kind, engine in engines.items():
            found[kind].append(engine.decode_speed(outputs))
    return {
        "rows": rows,
        "context": context,
        "tokens_per_s": {kind: machine.median(speeds) for kind, speeds in found.items()},
        "cache_bytes": {kind: engine.cache_bytes for kind, engine in engines.items()},
    }


def table(report: dict[str, Any]) -> Table:
    """Tokens a second and bytes, and their ratios to bfloat16's."""
    shown = Table(title=f"{report['model']}: decode, output tokens/s; KV cache, MB", title_justify="left")
    for column in ("rows", "context", *CACHES, *(f"{kind}, MB" for kind in CACHES)):
        shown.add_column(column, justify="right")
    for case in report["cases"]:
        speeds, held = case["tokens_per_s"], case["cache_bytes"]
        cells = [f"{speeds[kind]:.1f} ({speeds[kind] / speeds['bfloat16']:.2f}x)" for kind in CACHES]
        cells += [f"{held[kind] / 1e6:.1f} ({held[kind] / held['bfloat16']:.2f}x)" for kind in CACHES]
        shown.add_row(str(case["rows"]), f"{case['context']:,}", *cells)
    return shown


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--contexts", type=int, nargs="+", default=list(CONTEXTS))
    parser.add_argument("--outputs", type=int, default=OUTPUTS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.kv_cache")}
    report |= {"model": "Llama 150M, dummy weights, bfloat16", "outputs": asked.outputs, "cases": []}
    with tempfile.TemporaryDirectory() as scratch:
        directory = write_config(Path(scratch) / "llama150m", max(asked.contexts))
        for context in asked.contexts:
            for rows in asked.rows:
                report["cases"].append(measure(directory, rows, context, asked.outputs, asked.repeats))
                print(report["cases"][-1], flush=True)
    asked.output.write_text(json.dumps(report, indent=1) + "\n")
    Console().print(table(report))


if __name__ == "__main__":
    main()
