"""Streams of a real model outlive the engine that began them: experts that see few tokens, windows that forgot the prompt."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import asdict
from pathlib import Path

import pytest

from jaxserve.config.fields import CacheConfig, CompileConfig, EngineConfig, ModelConfig, SchedulerConfig
from jaxserve.engine.events import Delta, Finished
from jaxserve.engine.frontend import Frontend
from jaxserve.engine.remote.reports import MODEL_BUILDER
from jaxserve.engine.replicas.fleet import FleetSettings
from jaxserve.sampling.params import SamplingParams
from tests.support.hash_engine import engine_fleet

pytestmark = pytest.mark.asyncio

MODELS = Path(__file__).parents[2] / "golden" / "data"
STREAMS, PROMPT, LENGTH, SOME = 6, 50, 800, 20  # a prompt is longer than any window
PATIENT = FleetSettings(hang_seconds=60.0, wait_seconds=60.0)  # a killed engine's connection ends; none of them hangs


class Streams:
    """Greedy and seeded ones, side by side.

    Attributes:
        tokens: of each, so far.
        resumed: how often each went on elsewhere.
        begun: set once half of them have some tokens: on a machine that is held up the last may begin when the first have ended.
    """

    def __init__(self) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(STREAMS)]
        self.resumed = [0] * STREAMS
        self.begun = asyncio.Event()

    async def read(self, front: Frontend) -> list[list[int]]:
        async with asyncio.timeout(240):
            await asyncio.gather(*(self._one(front, number) for number in range(STREAMS)))
        return self.tokens

    async def _one(self, front: Frontend, number: int) -> None:
        params = SamplingParams(temperature=number % 2, seed=number, max_tokens=LENGTH, ignore_eos=True)
        prompt = [(7 * number + place) % 250 + 4 for place in range(PROMPT)]
        async for event in front.generate({"prompt_token_ids": prompt}, params):
            if isinstance(event, Delta):
                self.tokens[number] += event.token_ids
                if sum(len(tokens) >= SOME for tokens in self.tokens) >= STREAMS // 2:
                    self.begun.set()
            elif isinstance(event, Finished):
                self.resumed[number] = event.resumed


@pytest.mark.parametrize("model", ["qwen2-moe-windows", pytest.param("phi3-window", marks=pytest.mark.extended)])
async def test_streams_of_a_model_go_on_where_its_engine_is_killed(model: str) -> None:
    config = EngineConfig(
        model=ModelConfig(model=str(MODELS / model), dtype="float32", max_model_len=896),
        cache=CacheConfig(page_size=8, num_pages=801),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=32),
        compile=CompileConfig(before_ready="fewest"),
    )
    async with engine_fleet(2, PATIENT, builder=MODEL_BUILDER, **asdict(config)) as fleet:
        wanted = await Streams().read(fleet.front)
        streams = Streams()
        reading = asyncio.create_task(streams.read(fleet.front))
        await streams.begun.wait()
        os.kill(fleet.engines[0].process.pid, signal.SIGKILL)
        assert await reading == wanted
        assert sum(count > 0 for count in streams.resumed) >= 1
    assert all(len(tokens) == LENGTH for tokens in wanted)
    assert len({tuple(tokens) for tokens in wanted}) == STREAMS
