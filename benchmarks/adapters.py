"""Adapters (LoRA): decoding with 1, 8 and 64 of them in a batch beside decoding without, and how long a first token takes.

    python -m benchmarks.adapters [--streams 16 32] [--adapters 0 1 8 64] [--rounds 7] [--rank 16] [--tokens 64]

The model is the one of 150M parameters, with dummy weights; adapters are random, of all projections. `plain` is an engine that
serves no adapters; the other engine has 64 slots, and stream i has adapter i modulo their number (0: none has one). Both are in
this process and take turns, so that a busy moment meets them alike. Tokens a second are the median of rounds, `against_plain` the
median of a round's quotients.

The first token: of a short prompt whose adapter is on the device, in the host's memory, or on the disk alone.

Writes benchmarks/results/adapters.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from benchmarks import machine
from benchmarks.llama150m import CONFIG, write_config
from jaxserve.adapters.request import LoRARequest
from jaxserve.llm import LLM
from jaxserve.models.lora import lora_rules
from jaxserve.models.registry import decoder_config
from jaxserve.sampling.params import SamplingParams

RESULTS = Path(__file__).parent / "results" / "adapters.json"
PROMPT = 32  # tokens
SLOTS = 64


def main() -> None:
    given, report = begun("benchmarks.adapters", __doc__, [0, 1, 8, SLOTS], RESULTS)
    report["throughput"] = []
    with tempfile.TemporaryDirectory() as scratch:
        model = write_config(Path(scratch) / "llama150m")
        adapters = [write_adapter(Path(scratch) / f"adapter{number}", given.rank, number) for number in range(SLOTS + 2)]
        report["adapter_megabytes"] = round((adapters[0] / "adapter_model.safetensors").stat().st_size / 1e6, 1)
        rows = max(given.streams)
        plain = make_engine(model, rows)
        adapted = make_engine(model, rows, enable_lora=True, max_loras=SLOTS, max_cpu_loras=SLOTS, max_lora_rank=given.rank)
        report["slots_megabytes"] = round(adapted.report.memory.adapters / 1e6, 1)
        for streams in given.streams:
            for count in given.adapters:
                report["throughput"].append(throughput(plain, adapted, adapters[:count], streams, given.rounds, given.tokens))
                given.out.write_text(json.dumps(report, indent=1) + "\n")  # after each: they take long
        report["first_token_ms"] = _first_tokens(adapted, adapters, given.rounds)
    given.out.write_text(json.dumps(report, indent=1) + "\n")


def begun(name: str, about: str | None, adapters: list[int], results: Path) -> tuple[argparse.Namespace, dict[str, Any]]:
    """What was asked for, and a report that says so. `adapters` and `results` are what nobody need ask for."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", nargs="+", type=int, default=[16, 32])
    parser.add_argument("--adapters", nargs="+", type=int, default=adapters)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64, help="of each stream and round")
    parser.add_argument("--out", type=Path, default=results)
    given = parser.parse_args()
    described = {"machine": machine.describe(), "command": machine.command(name)}
    return given, described | {key: getattr(given, key) for key in ("rank", "tokens", "rounds")}


def make_engine(model: Path, rows: int, **more: Any) -> LLM:
    return LLM(str(model), load_format="dummy", max_num_seqs=rows, max_num_batched_tokens=512, max_model_len=512, **more)


def write_adapter(folder: Path, rank: int, seed: int, config: Mapping[str, Any] = CONFIG, *, experts: bool = False) -> Path:
    """As PEFT saves one, in bfloat16, of all projections; of routed experts' too if it is told so."""
    rng, tensors, modules = np.random.default_rng(seed), {}, set[str]()
    for rule in lora_rules(decoder_config(config), experts=experts).values():
        for source in rule.sources:
            name, (outputs, inputs) = f"base_model.model.{source.name.removesuffix('.weight')}", source.shape
            modules.add(name.rpartition(".")[2])
            for part, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
                numbers = rng.standard_normal(shape, np.float32) * 0.02
                tensors[f"{name}.{part}.weight"] = numbers.astype(ml_dtypes.bfloat16)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "target_modules": sorted(modules)}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def throughput(plain: LLM, adapted: LLM, adapters: list[Path], streams: int, rounds: int, tokens: int) -> dict[str, Any]:
    """Rounds of both engines, the first of which is not counted."""
    requests = [_request(adapters[stream % len(adapters)]) if adapters else None for stream in range(streams)]
    speeds: dict[str, list[float]] = {"plain": [], "adapted": []}
    for number in range(rounds + 1):
        sides = [("plain", plain, None), ("adapted", adapted, requests)]
        for name, engine, given in sides if number % 2 else sides[::-1]:
            speed = _decode(engine, streams, tokens, number, given)
            if number:
                speeds[name].append(speed)
    quotients = [ours / its for ours, its in zip(speeds["adapted"], speeds["plain"], strict=True)]
    row = {
        "streams": streams,
        "adapters": len(adapters),
        "tokens_per_second": {name: round(statistics.median(found), 1) for name, found in speeds.items()},
        "against_plain": round(statistics.median(quotients), 3),
        "against_plain_range": [round(min(quotients), 3), round(max(quotients), 3)],
    }
    print(row, flush=True)
    return row


def _request(folder: Path) -> LoRARequest:
    return LoRARequest(folder.name, 1, folder)


def _decode(engine: LLM, streams: int, tokens: int, number: int, requests: list[LoRARequest | None] | None) -> float:
    """Tokens a second of decoding, prompts not counted: what takes them is taken off by a call for one token each."""
    prompts: list[Any] = [
        {"prompt_token_ids": [3 + (17 * stream + 31 * number + place * place) % 900 for place in range(PROMPT)]}
        for stream in range(streams)
    ]
    seconds = []
    for count in (1, tokens):
        params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
        engine.reset_prefix_cache()
        started = time.perf_counter()
        engine.generate(prompts, params, lora_request=requests)
        seconds.append(time.perf_counter() - started)
    return streams * (tokens - 1) / max(seconds[1] - seconds[0], 1e-9)


def _first_tokens(engine: LLM, adapters: list[Path], rounds: int) -> dict[str, float]:
    """Milliseconds to one token behind a short prompt, by where its adapter is; the median of rounds.

    One more adapter than there are slots, and one more again than there is memory for: each in turn comes from further away.
    """
    store, table = engine._built.adapters.store, engine._built.adapters.table  # type: ignore[union-attr]
    found: dict[str, list[float]] = {"none": [], "device": [], "host": [], "disk": []}
    for folder in adapters:
        store.load(folder.name, folder, in_place=True)
    for number in range(rounds):
        for folder in adapters[:SLOTS]:
            _first(engine, folder, 0)
        found["none"].append(_first(engine, None, number))
        found["device"].append(_first(engine, adapters[SLOTS - 1], number))
        loads, fetches = table.num_loads, store.num_fetches
        found["disk"].append(_first(engine, adapters[SLOTS + number % 2], number))  # takes the slot and the place of the first
        assert (table.num_loads, store.num_fetches) == (loads + 1, fetches + 1)
        _first(engine, adapters[SLOTS - 2], 0)
        evicted = next(folder for folder in adapters if folder.name not in _resident(engine, store))
        store.bring(store.find(evicted.name).key)
        while store.bring(store.find(evicted.name).key) is not None:
            time.sleep(0.001)
        fetches = store.num_fetches
        found["host"].append(_first(engine, evicted, number))
        assert store.num_fetches == fetches
    return {where: round(1e3 * statistics.median(seconds), 2) for where, seconds in found.items()}


def _resident(engine: LLM, store: Any) -> set[str]:
    keys = engine._built.adapters.table.resident  # type: ignore[union-attr]
    return {info.name for info in store.listed() if info.key in keys}


def _first(engine: LLM, folder: Path | None, number: int) -> float:
    prompt: Any = {"prompt_token_ids": [5 + number, 7, 11, 13]}
    started = time.perf_counter()
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    engine.generate(prompt, params, lora_request=None if folder is None else _request(folder))
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
