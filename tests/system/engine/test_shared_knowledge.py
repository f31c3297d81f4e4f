"""Several front ends over engines in processes of their own: each knows what the others had them compute."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from jaxserve.engine.calls import Flush
from jaxserve.engine.frontend import Frontend
from jaxserve.engine.replicas.fleet import FleetLink
from jaxserve.engine.replicas.replica import Endpoint
from jaxserve.routing.pools import Pool, PoolRouter
from jaxserve.routing.prefix_router import PrefixRouter
from jaxserve.routing.router import RoutingRequest
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import ServiceClass
from tests.support.hash_engine import RemoteEngine, front_end, remote_engine
from tests.support.tiny_checkpoint import write_tiny_checkpoint

pytestmark = pytest.mark.asyncio

PROMPTS = [random.Random(seed).choices(range(250), k=200) for seed in range(6)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


class Recording(PrefixRouter):
    """Remembers its choices."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen: list[str | None] = []

    def choose(self, request: RoutingRequest, now: float, excluded: Collection[str] = ()) -> str | None:
        self.chosen.append(super().choose(request, now, excluded))
        return self.chosen[-1]


class Front:
    """A front end of a fleet."""

    def __init__(self, engines: Mapping[str, RemoteEngine]) -> None:
        self.made: list[Recording] = []
        self.link = FleetLink(PoolRouter([Pool("pool", tuple(ServiceClass))], self._router))
        self.link.set_replicas({name: Endpoint(engine.spec.address) for name, engine in engines.items()})
        self.count = len(engines)
        self.client: Frontend

    def _router(self) -> Recording:
        self.made.append(Recording())
        return self.made[-1]

    @property
    def knows_all(self) -> bool:
        """A page of every 128 tokens of all prompts."""
        return self.known >= len(PROMPTS)

    @property
    def known(self) -> int:
        """Pages of all engines."""
        return sum(len(router._knowledge) for router in self.made)

    async def open(self) -> None:
        self.client = front_end(self.link, await self.link.described(), origin=str(id(self)))
        await until(lambda: self.ready == self.count)

    @property
    def ready(self) -> int:
        return sum(state.ready for state in self.link.replicas.values())

    async def send(self, prompt: list[int]) -> str | None:
        """The replica that took it, once it has ended."""
        async for _ in self.client.generate({"prompt_token_ids": prompt}, SamplingParams(max_tokens=2)):
            pass
        return self.made[0].chosen[-1]


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not what():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def fronts(engines: Mapping[str, RemoteEngine], *of: tuple[str, ...]) -> AsyncIterator[list[Front]]:
    made = [Front({name: engines[name] for name in names}) for names in of]
    try:
        async with asyncio.timeout(20):
            for front in made:
                await front.open()
        yield made
    finally:
        for front in made:
            await front.client.drain(0.0)


@pytest.fixture
async def engines(tokenizer: str) -> AsyncIterator[dict[str, RemoteEngine]]:
    async with AsyncExitStack() as opened:
        starting = [opened.enter_async_context(remote_engine(tokenizer=tokenizer, step_seconds=0.002)) for _ in range(2)]
        yield {f"pool/{place}": await engine for place, engine in enumerate(starting)}


BOTH = ("pool/0", "pool/1")


async def test_a_prompt_goes_where_another_front_end_had_it_computed(engines: dict[str, RemoteEngine]) -> None:
    async with fronts(engines, ("pool/1",), BOTH) as (other, front):
        for prompt in PROMPTS:
            assert await other.send(prompt) == "pool/1"
        await until(lambda: front.knows_all)
        assert [await front.send(prompt) for prompt in PROMPTS] == ["pool/1"] * len(PROMPTS)
        async with fronts(engines, BOTH) as (late,):  # what there was is told to who comes later
            await until(lambda: late.knows_all)
            assert [await late.send(prompt) for prompt in PROMPTS] == ["pool/1"] * len(PROMPTS)


async def test_what_an_engine_lost_nobody_relies_on(engines: dict[str, RemoteEngine]) -> None:
    async with fronts(engines, ("pool/1",), BOTH) as (other, front):
        for prompt in PROMPTS:
            await other.send(prompt)
        await until(lambda: front.knows_all)
        await other.link.call(Flush())
        await until(lambda: front.known == 0)
        for prompt in PROMPTS:
            await other.send(prompt)
        await until(lambda: front.knows_all)
        engine = engines["pool/1"]
        os.kill(engine.process.pid, signal.SIGKILL)
        await engine.process.ended()
        await until(lambda: front.known == 0)
        await engine.restart()
        await until(lambda: front.ready == 2)
        assert front.known == 0
        assert {await front.send(prompt) for prompt in PROMPTS} == set(BOTH), "each goes to its home"
