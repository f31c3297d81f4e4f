"""Adapters that come, change and go at random while requests run: nobody gets another's tokens, and nothing is left.

    python -m benchmarks.adapter_churn [--operations 10000] [--seed 0]

An engine of the bundled model has three slots and five places in memory for ten adapters, which twelve names stand for in turn:
most requests find that theirs has to be read again. What each adapter answers alone is asked first; then requests, loads,
replacements, unloads and aborts come at random, eight requests at a time. A request's tokens must be those of an adapter that
its name stood for while it ran, and it may fail for one reason only: its name was unloaded meanwhile. In the end nothing runs,
waits, holds a page or uses a slot, and no more adapters are in memory than may be. A program compiled meanwhile fails its step.

Writes benchmarks/results/adapter_churn.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from benchmarks import machine
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.calls import LoadAdapter, UnloadAdapter
from jaxserve.engine.events import Delta
from jaxserve.engine.link import load_of
from jaxserve.engine.local import LocalEngine
from jaxserve.errors import ModelNotFoundError
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.lora import lora_rules
from jaxserve.models.registry import decoder_config
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import RequestOptions, TokensPrompt

PICO = Path(__file__).parents[1] / "jaxserve" / "assets" / "pico"
RESULTS = Path(__file__).parent / "results" / "adapter_churn.json"
ADAPTERS, NAMES, SLOTS, PLACES, AT_ONCE, TOKENS = 10, 12, 3, 5, 8, 4
PROMPTS = [TokensPrompt(prompt_token_ids=list(range(first, first + length))) for first, length in ((500, 9), (90, 20), (300, 41))]
GREEDY = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
KINDS = {"request": 12, "abort": 1, "load": 4, "unload": 2}  # how often each comes, beside the others
SETTINGS: dict[str, Any] = {
    "model": str(PICO),
    "dtype": "float32",
    "enable_lora": True,
    "max_loras": SLOTS,
    "max_cpu_loras": PLACES,
    "max_lora_rank": 8,
    "max_num_seqs": AT_ONCE,
    "max_num_batched_tokens": 64,
    "max_model_len": 128,
    "num_pages": 48,
    "late_compiles": "raise",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        report = asyncio.run(churn(Path(scratch), given.operations, given.seed))
    about = {"machine": machine.describe(), "command": machine.command("benchmarks.adapter_churn")}
    given.out.write_text(json.dumps(about | report, indent=1) + "\n")
    print(report)


async def churn(scratch: Path, operations: int, seed: int) -> dict[str, Any]:
    """Run so many operations. Raises AssertionError for whatever must not be."""
    folders = [_adapter(scratch / f"adapter{number}", number) for number in range(ADAPTERS)]
    engine = await LocalEngine.start(EngineConfig.from_settings(SETTINGS), lambda *told: None)
    try:
        run = _Churn(engine, await _alone(engine, folders), folders, random.Random(seed))
        started = time.perf_counter()
        await run.operate(operations)
        seconds = time.perf_counter() - started
        await engine.call(LoadAdapter("last", str(folders[0])))
        await _tokens(engine, "last", PROMPTS[0])  # whoever aborted may have left more in memory than may be, until the next step
        return {"operations": operations, "seconds": round(seconds, 1), "done": dict(run.done)} | _left(engine)
    finally:
        await engine.drain(0)


class _Churn:
    """Random operations.

    Attributes:
        done: how many of each kind, and how many requests found that their name had gone.
    """

    def __init__(self, engine: LocalEngine, alone: list[list[list[int]]], folders: Sequence[Path], chance: random.Random) -> None:
        self._engine = engine
        self._alone = alone
        self._folders = folders
        self._chance = chance
        self._past: dict[str, list[int | None]] = {f"name{number}": [None] for number in range(NAMES)}
        self._places = asyncio.Semaphore(AT_ONCE)
        self.done: Counter[str] = Counter()

    async def operate(self, operations: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(operations):
                (kind,) = self._chance.choices(list(KINDS), list(KINDS.values()))
                name = self._chance.choice(list(self._past))
                self.done[kind] += 1
                if kind == "load":
                    await self._load(name)
                elif kind == "unload":
                    await self._unload(name)
                else:
                    await self._places.acquire()
                    group.create_task(self._request(name, self._chance.randrange(len(PROMPTS)), cut=kind == "abort"))
                    await asyncio.sleep(0)

    async def _load(self, name: str) -> None:
        content, known = self._chance.randrange(ADAPTERS), self._past[name][-1] is not None
        self._past[name].append(content)  # from here on requests may have it
        await self._engine.call(LoadAdapter(name, str(self._folders[content]), in_place=known))
        self._past[name].append(content)  # from here on no other

    async def _unload(self, name: str) -> None:
        if self._past[name][-1] is None:
            return
        self._past[name].append(None)
        await self._engine.call(UnloadAdapter(name))

    async def _request(self, name: str, prompt: int, *, cut: bool) -> None:
        before, tokens = len(self._past[name]) - 1, list[int]()
        stream = self._engine.generate(PROMPTS[prompt], GREEDY, options=RequestOptions(adapter=name))
        try:
            async for event in stream:
                tokens += event.token_ids if isinstance(event, Delta) else ()
                if cut and tokens:
                    break
        except ModelNotFoundError:
            assert None in self._past[name][before:], f"{name} was there all the time"
            self.done["name had gone"] += 1
        else:
            stood_for = {content for content in self._past[name][before:] if content is not None}
            allowed = [self._alone[content][prompt][: len(tokens)] for content in stood_for]
            assert tokens in allowed, f"{name} got {tokens}, and stood for {sorted(stood_for)}: {allowed}"
            assert cut or len(tokens) == TOKENS
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
            self._places.release()


async def _alone(engine: LocalEngine, folders: Sequence[Path]) -> list[list[list[int]]]:
    """What each adapter answers to each prompt, asked for one at a time: each something else."""
    found = []
    for number, folder in enumerate(folders):
        name = f"alone{number}"
        await engine.call(LoadAdapter(name, str(folder)))
        found.append([await _tokens(engine, name, prompt) for prompt in PROMPTS])
        await engine.call(UnloadAdapter(name))
    for answers in zip(*found, strict=True):
        assert len(set(map(tuple, answers))) == len(folders), "two adapters answer the same: nothing would tell them apart"
    return found


async def _tokens(engine: LocalEngine, name: str, prompt: TokensPrompt) -> list[int]:
    options = RequestOptions(adapter=name)
    events = [event async for event in engine.generate(prompt, GREEDY, options=options)]
    return [token for event in events if isinstance(event, Delta) for token in event.token_ids]


def _left(engine: LocalEngine) -> dict[str, Any]:
    """What came of it, once nothing runs."""
    built = engine._built
    assert built.adapters is not None
    table, store, load = built.adapters.table, built.adapters.store, load_of(built.core)
    assert (load.running, load.waiting) == (0, 0)
    assert load.pages_free == load.pages_total, "pages are left"
    assert not any(table.resident.values()), "slots are in use"
    assert len(table.resident) <= SLOTS
    assert store.num_held <= PLACES
    return {"slot_loads": table.num_loads, "reads": store.num_fetches}


def _adapter(folder: Path, seed: int) -> Path:
    """As PEFT saves one, of all projections; so large that it decides what is chosen."""
    rng, rank, tensors = np.random.default_rng(seed), 1 + seed % 8, {}
    for rule in lora_rules(decoder_config(read_hf_config(PICO))).values():
        for source in rule.sources:
            outputs, inputs = source.shape
            for part, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
                name = f"base_model.model.{source.name.removesuffix('.weight')}.{part}.weight"
                tensors[name] = (rng.standard_normal(shape) * 0.3 / shape[1] ** 0.5).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    told = {"peft_type": "LORA", "r": rank, "lora_alpha": 8 * rank, "bias": "none", "base_model_name_or_path": "pico"}
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return folder


if __name__ == "__main__":
    main()
