"""Both servers in front of a real engine in this process: clients that go away give their pages back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import grpc.aio
import httpx
import pytest

from jaxserve.config.fields import CacheConfig, CompileConfig, EngineConfig, ModelConfig, SchedulerConfig
from jaxserve.engine.local import LocalEngine
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from tests.support.serving import Serving, serving
from tests.support.tiny_checkpoint import write_tiny_checkpoint

# No end-of-sequence and the rest of the context: these run until somebody stops them.
ENDLESS = {"prompt": "to be or not to be", "ignore_eos": True, "max_tokens": 200, "temperature": 0.0}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny")
    return EngineConfig(
        model=ModelConfig(model=str(directory), load_format="dummy"),
        cache=CacheConfig(num_pages=128, prefix_caching=False),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16),
        compile=CompileConfig(before_ready="fewest"),
    )


@pytest.fixture(scope="module")
async def engine(config: EngineConfig) -> LocalEngine:
    return await LocalEngine.start(config, lambda what, done, total: None)


@pytest.fixture(scope="module")
async def servers(engine: LocalEngine) -> AsyncIterator[Serving]:
    async with serving(engine) as running:
        yield running


async def until_free(engine: LocalEngine) -> None:
    async with asyncio.timeout(20):
        while True:
            stats = engine.stats()
            if stats.pages_free == stats.pages_total and stats.active == stats.running == stats.waiting == 0:
                return
            await asyncio.sleep(0.01)


async def test_clients_that_go_away_free_their_pages(servers: Serving, engine: LocalEngine) -> None:
    dice = random.Random(7)

    async def over_http(stream: bool, patience: float) -> None:
        async with httpx.AsyncClient(base_url=servers.http, timeout=60) as client:
            try:
                async with asyncio.timeout(patience):
                    await client.post("/v1/completions", json={**ENDLESS, "stream": stream, "n": 2})
            except TimeoutError:
                pass

    async def over_grpc(channel: grpc.aio.Channel, patience: float) -> None:
        stopping = pb.Stopping(max_tokens=200, ignore_eos=True)
        call = InferenceStub(channel).Generate(pb.GenerateRequest(text="to be", stopping=stopping))
        await asyncio.sleep(patience)
        call.cancel()

    async with grpc.aio.insecure_channel(servers.grpc) as channel:
        await asyncio.gather(
            *(over_http(stream, dice.uniform(0.01, 0.4)) for stream in (False, True) for _ in range(8)),
            *(over_grpc(channel, dice.uniform(0.01, 0.4)) for _ in range(8)),
        )
    await until_free(engine)
    stats = engine.stats()
    assert stats.received == stats.finished + stats.aborted + stats.rejected
    assert stats.aborted > 0
    async with httpx.AsyncClient(base_url=servers.http, timeout=30) as client:
        reply = await client.post("/v1/completions", json={**ENDLESS, "max_tokens": 4}, timeout=30)
    assert reply.json()["usage"]["completion_tokens"] == 4


async def test_bad_input_disturbs_nobody(servers: Serving, engine: LocalEngine) -> None:
    async with httpx.AsyncClient(base_url=servers.http, timeout=60) as client:
        alone = (await client.post("/v1/completions", json=ENDLESS)).json()["choices"][0]["text"]
        running = asyncio.create_task(client.post("/v1/completions", json=ENDLESS))
        bad = [{"prompt": "x" * 500}, {"prompt": [10**6]}, {"prompt": "x", "top_p": 2}, {"prompt": ""}, {"prompt": [-1]}]
        replies = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bad * 4))
        assert {reply.status_code for reply in replies} == {400}
        assert (await running).json()["choices"][0]["text"] == alone
    await until_free(engine)
