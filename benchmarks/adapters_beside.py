"""Adapters beside vLLM: decoding with none, 1, 8 and 64 of the same adapters in a batch, both servers taking turns.

    python -m benchmarks.adapters_beside --vllm-python peers/vllm/bin/python [--streams 16 32] [--adapters 0 1 8 64] [--rounds 5]

The model is the one of `benchmarks.peers`, the adapters are random, of all projections, as PEFT saves them. Stream i asks for
adapter i modulo their number (0: none has one). Tokens a second are those of decoding: a turn asks twice, for one token each and
for all, and the first is taken off. `against_vllm` is the median of the rounds' quotients. Writes
benchmarks/results/adapters_beside.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks import machine
from benchmarks.adapters import SLOTS, write_adapter
from benchmarks.peers.checkpoint import write_models
from benchmarks.peers.engines import CONTEXT, Engine, begun, jaxserve, vllm

RESULTS = Path(__file__).parent / "results" / "adapters_beside.json"
_PROMPT, _PATIENCE_SECONDS = 32, 600.0


async def _ask(engine: Engine, models: list[str], prompts: list[list[int]], tokens: int) -> float:
    """Seconds until all have their tokens."""
    asked = {**engine.recipe.fields, "max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=engine.url, timeout=_PATIENCE_SECONDS) as client:
        bodies = [{**asked, "model": model, "prompt": prompt} for model, prompt in zip(models, prompts, strict=True)]
        began = time.perf_counter()
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        seconds = time.perf_counter() - began
    for answer in answers:
        if (found := answer.raise_for_status().json()["usage"]["completion_tokens"]) != tokens:
            raise RuntimeError(f"{engine.recipe.name} answered {found} tokens, not {tokens}")
    return seconds


def decode(engine: Engine, names: list[str], streams: int, tokens: int, rng: np.random.Generator) -> float:
    """Tokens a second of so many streams."""
    models = [names[stream % len(names)] if names else engine.recipe.fields["model"] for stream in range(streams)]
    seconds = []
    for count in (1, tokens):
        prompts = rng.integers(3, 32000, (streams, _PROMPT)).tolist()  # new ones: nobody's prefix cache knows them
        seconds.append(asyncio.run(_ask(engine, models, prompts, count)))
    return streams * (tokens - 1) / (seconds[1] - seconds[0])


def compare(engines: list[Engine], names: list[str], streams: int, given: argparse.Namespace) -> dict[str, Any]:
    """Rounds of one turn each, the first of which is not counted."""
    rng = np.random.default_rng(len(names) + streams)
    speeds: dict[str, list[float]] = {engine.recipe.name: [] for engine in engines}
    for number in range(given.rounds + 1):
        for engine in engines if number % 2 else engines[::-1]:
            speed = decode(engine, names, streams, given.tokens, rng)
            if number:
                speeds[engine.recipe.name].append(speed)
    quotients = [ours / theirs for ours, theirs in zip(speeds["jaxserve"], speeds["vllm"], strict=True)]
    row = {
        "streams": streams,
        "adapters": len(names),
        "tokens_per_second": {name: round(machine.median(found), 1) for name, found in speeds.items()},
        "against_vllm": round(machine.median(quotients), 2),
        "against_vllm_range": [round(min(quotients), 2), round(max(quotients), 2)],
    }
    print(row, flush=True)
    return row


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", required=True, help="an interpreter that has vLLM for CPUs")
    parser.add_argument("--streams", nargs="+", type=int, default=[16, 32])
    parser.add_argument("--adapters", nargs="+", type=int, default=[0, 1, 8, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64, help="of each stream")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.adapters_beside"), "rank": given.rank}
    report |= {"tokens": given.tokens, "rounds": given.rounds, "throughput": []}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as opened:
        folder = Path(scratch)
        models = write_models(folder)
        adapters = [write_adapter(folder / f"adapter{number}", given.rank, number) for number in range(max(given.adapters))]
        listed = ["--lora-modules", *(f"{adapter.name}={adapter}" for adapter in adapters)]
        flags = ["--enable-lora", "--max-loras", str(SLOTS), "--max-cpu-loras", str(SLOTS), "--max-lora-rank", str(given.rank)]
        flags += ["--max-num-seqs", str(max(given.streams)), *listed]
        sizes = ["--dtype", "bfloat16", "--max-model-len", str(CONTEXT)]
        recipes = [jaxserve(models, flags), vllm(models, given.vllm_python, [*sizes, *flags])]
        engines = [begun(recipe, folder, opened) for recipe in recipes]
        for streams in given.streams:
            for count in given.adapters:
                names = [adapter.name for adapter in adapters[:count]]
                report["throughput"].append(compare(engines, names, streams, given))
                given.out.write_text(json.dumps(report, indent=1) + "\n")  # after each: they take long


if __name__ == "__main__":
    main()
