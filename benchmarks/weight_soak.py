"""Two hundred updates of the weights while sixteen streams run: whether any token, page or byte is out of place.

    python -m benchmarks.weight_soak [--updates 200] [--streams 16]

The bundled model in float32, and the same with every matrix a little changed, take turns as the weights of one engine in this
process; updates abort, wait or keep in turn. Every output is held against engines that had one of both weights from the start:
tokens that an output says are of one version must be those, up to the first of another version. Prompts share a beginning, so a
prefix that was found across versions would change tokens. Writes benchmarks/results/weight_soak.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from safetensors.numpy import load_file

from benchmarks import machine
from jaxserve.engine.pause import PauseMode
from jaxserve.executor.compile_guard import COMPILED
from jaxserve.llm import LLM
from jaxserve.outputs import RequestOutput
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import TokensPrompt

RESULTS = Path(__file__).parent / "results" / "weight_soak.json"
PICO = Path(__file__).parents[1] / "jaxserve" / "assets" / "pico"
MODES: tuple[PauseMode, ...] = ("abort", "wait", "keep")
SHARED, OWN, OUTPUT = 64, 8, 48  # tokens
PROMPTS = 64
WARM = 6  # updates before which programs of updates are compiled


@dataclass
class Found:
    """What the outputs were.

    Attributes:
        ended: outputs by how they ended.
        segments: outputs by how many versions their tokens are of.
        wrong: outputs with a token that their version does not choose.
        cached: prompt tokens that were found in the prefix cache.
    """

    ended: Counter[str] = field(default_factory=Counter)
    segments: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    cached: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--streams", type=int, default=16)
    given = parser.parse_args()
    found = soak(given.updates, given.streams)
    report = {**machine.describe(), "command": machine.command("benchmarks.weight_soak"), **found}
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def soak(updates: int, streams: int) -> dict[str, Any]:
    trees = _trees()
    prompts, params = _prompts(), SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    oracle = [[output.outputs[0].token_ids for output in _engine(tree, streams).generate(prompts, params)] for tree in trees]
    llm = _engine(trees[0], streams)
    llm.update_weights(trees[0], 0)
    found, done = Found(), threading.Event()

    def heard(output: RequestOutput) -> None:
        _check(output, oracle, found)

    def generate() -> None:
        while not done.is_set():
            llm.generate(prompts, params, on_output=heard)

    thread = threading.Thread(target=generate)
    thread.start()
    compiled: list[int] = [0]
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: _count(event, compiled))
    rows = []
    for number in range(1, updates + 1):
        seen, began = found.ended.total(), time.monotonic()
        while found.ended.total() < seen + streams // 2 and thread.is_alive():  # some end between two updates
            time.sleep(0.01)
        waited, began = time.monotonic() - began, time.monotonic()
        llm.update_weights(trees[number % 2], number, mode=MODES[number % len(MODES)])
        rows.append({"mode": MODES[number % len(MODES)], "seconds": time.monotonic() - began, "between": waited})
        if number == WARM:
            compiled[0], before = 0, _memory()
    done.set()
    thread.join()
    return {
        "updates": updates,
        "streams": streams,
        "seconds_of_an_update": {mode: _median(rows, mode) for mode in MODES},
        "outputs": dict(found.ended),
        "outputs_by_versions_of_their_tokens": {str(count): number for count, number in sorted(found.segments.items())},
        "wrong_outputs": found.wrong,
        "cached_prompt_tokens": found.cached,
        "programs_compiled_after_the_first_updates": compiled[0],
        "memory_mb": {"after_the_first_updates": before, "at_the_end": _memory()},
    }


def _trees() -> list[dict[str, jax.Array]]:
    tensors = load_file(PICO / "model.safetensors")
    changed = {}
    for number, (name, value) in enumerate(sorted(tensors.items())):
        noise = np.random.default_rng(number).normal(0.0, 0.1, value.shape)
        changed[name] = jnp.asarray(value * (1.0 + noise), jnp.float32)
    return [{name: jnp.asarray(value, jnp.float32) for name, value in tensors.items()}, changed]


def _engine(tree: dict[str, jax.Array], streams: int) -> LLM:
    return LLM.from_params(str(PICO), tree, dtype="float32", max_num_seqs=streams, max_num_batched_tokens=256, max_model_len=256)


def _prompts() -> list[TokensPrompt]:
    random = np.random.default_rng(0)
    shared = random.integers(8, 500, SHARED).tolist()
    return [{"prompt_token_ids": [*shared, *random.integers(8, 500, OWN).tolist()]} for _ in range(PROMPTS)]


def _check(output: RequestOutput, oracle: list[list[list[int]]], found: Found) -> None:
    one = output.outputs[0]
    versions = one.weight_versions or []
    found.ended[one.finish_reason] += 1
    found.segments[len(versions)] += 1
    found.cached += output.num_cached_tokens
    if versions:  # tokens behind an update are chosen over keys and values of both versions: no engine has them from the start
        first = versions[0]
        right = oracle[int(first.version) % 2][int(output.request_id)]
        found.wrong += one.token_ids[: first.end] != right[: first.end]


def _count(event: str, compiled: list[int]) -> None:
    compiled[0] += event == COMPILED


def _memory() -> dict[str, float]:
    gc.collect()
    arrays = sum(array.nbytes for array in jax.live_arrays())
    return {"arrays": round(arrays / 1e6, 1), "resident": round(psutil.Process(os.getpid()).memory_info().rss / 1e6, 1)}


def _median(rows: list[dict[str, Any]], mode: PauseMode) -> float:
    return round(float(statistics.median(row["seconds"] for row in rows if row["mode"] == mode)), 3)


if __name__ == "__main__":
    main()
