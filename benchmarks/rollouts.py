"""Rollouts beside vLLM: prompts of which each has several samples, with the log-probabilities of their tokens.

    python -m benchmarks.rollouts --vllm-python peers/vllm/bin/python [--prompts 512] [--samples 8] [--tokens 16] [--rounds 3]

Both serve the 150M model of `benchmarks.peers` on this machine, and take turns; all prompts of a round are asked at once, as a
step of GRPO asks them: temperature 1, `n` samples of a prompt in one request, `logprobs`, no end of sequence. Prompts are new in
every round. `against_vllm` is the median of the rounds' quotients of tokens a second, `cpu_seconds` what a turn cost all
processes of its server. Writes benchmarks/results/rollouts.json. How vLLM is installed: benchmarks/peers/README.md.
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
from benchmarks.peers.checkpoint import write_models
from benchmarks.peers.engines import CONTEXT, Engine, begun, jaxserve, vllm

RESULTS = Path(__file__).parent / "results" / "rollouts.json"
_PROMPT, _ROWS = 64, 128
_PATIENCE_SECONDS = 1800.0


async def rollout(engine: Engine, prompts: list[list[int]], samples: int, tokens: int) -> None:
    """Ask for all samples of all prompts at once. Raises RuntimeError if one has not its tokens and log-probabilities."""
    asked = {"n": samples, "max_tokens": tokens, "temperature": 1.0, "logprobs": 1, "ignore_eos": True}
    limits = httpx.Limits(max_connections=len(prompts))
    async with httpx.AsyncClient(base_url=engine.url, timeout=_PATIENCE_SECONDS, limits=limits) as client:
        bodies = [{**engine.recipe.fields, **asked, "prompt": prompt} for prompt in prompts]
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
    for answer in answers:
        found = [len(choice["logprobs"]["token_logprobs"]) for choice in answer.raise_for_status().json()["choices"]]
        if found != [tokens] * samples:
            raise RuntimeError(f"{engine.recipe.name} answered {found} tokens, not {samples} times {tokens}")


def turn(engine: Engine, prompts: list[list[int]], given: argparse.Namespace) -> dict[str, float]:
    """One engine's rollout of these prompts."""
    began, cpu = time.perf_counter(), engine.cpu_seconds()
    asyncio.run(rollout(engine, prompts, given.samples, given.tokens))
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "cpu_seconds": engine.cpu_seconds() - cpu,
        "tokens_per_s": len(prompts) * given.samples * given.tokens / seconds,
    }


def measure(engines: list[Engine], given: argparse.Namespace) -> list[dict[str, dict[str, float]]]:
    """Rounds of one turn each, in the other order every second time."""
    rng = np.random.default_rng(0)
    rounds: list[dict[str, dict[str, float]]] = []
    for engine in engines:
        turn(engine, rng.integers(3, 32000, (_ROWS, _PROMPT)).tolist(), given)
    for number in range(given.rounds):
        prompts = rng.integers(3, 32000, (given.prompts, _PROMPT)).tolist()
        order = engines if number % 2 == 0 else engines[::-1]
        rounds.append({engine.recipe.name: turn(engine, prompts, given) for engine in order})
        print(json.dumps(rounds[-1]), flush=True)
    return rounds


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", required=True, help="an interpreter that has vLLM for CPUs")
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--samples", type=int, default=8, help="of each prompt")
    parser.add_argument("--tokens", type=int, default=16, help="of each sample")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = ["--max-num-seqs", str(_ROWS)]
    sizes = ["--dtype", "bfloat16", "--max-model-len", str(CONTEXT), *rows]
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.rollouts"), "prompt": _PROMPT}
    report |= {"prompts": given.prompts, "samples": given.samples, "tokens": given.tokens, "rows": _ROWS}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as opened:
        folder = Path(scratch)
        models = write_models(folder)
        queue = ["--max-waiting", str(given.prompts * given.samples)]  # vLLM's has no end
        recipes = jaxserve(models, [*rows, *queue]), vllm(models, given.vllm_python, sizes)
        engines = [begun(recipe, folder, opened) for recipe in recipes]
        report["rounds"] = measure(engines, given)
    quotients = [found["jaxserve"]["tokens_per_s"] / found["vllm"]["tokens_per_s"] for found in report["rounds"]]
    report["against_vllm"] = machine.median(quotients)
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"against vLLM: {report['against_vllm']:.2f}x (from {min(quotients):.2f} to {max(quotients):.2f})")


if __name__ == "__main__":
    main()
