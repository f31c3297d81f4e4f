"""Clients that go away at random moments leave nothing behind."""

import asyncio
import random
from collections.abc import AsyncGenerator

import pytest

from jaxserve.config.fields import CacheConfig, CompileConfig, EngineConfig, ModelConfig, SchedulerConfig
from jaxserve.engine.events import Delta, Finished, Started
from jaxserve.engine.local import LocalEngine
from jaxserve.errors import DrainingError, RefusedError
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import FinishReason, TokensPrompt
from tests.golden.reading import read_golden
from tests.support.engine import silent

REQUESTS = 1000
AT_ONCE = 60


def config(**scheduler):
    return EngineConfig(
        model=ModelConfig(model=str(read_golden("llama-tied").directory), dtype="float32", max_model_len=96),
        cache=CacheConfig(page_size=8, num_pages=60),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=24, **scheduler),
        compile=CompileConfig(before_ready="fewest"),
    )


async def settled(engine):
    """The engine's load once it has taken in every abort."""
    for _ in range(1000):
        stats = engine.stats()
        if stats.running == stats.waiting == 0 and stats.pages_free == stats.pages_total:
            break
        await asyncio.sleep(0.01)
    return engine.stats()


def check_conserved(stats):
    assert stats.pages_free == stats.pages_total
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.active == 0
    assert stats.received == stats.finished + stats.aborted + stats.rejected


async def test_every_page_is_free_after_1000_random_aborts():
    engine = await LocalEngine.start(config(max_waiting=70, growth_reserve=0.0), silent)
    rng = random.Random(3)
    gate = asyncio.Semaphore(AT_ONCE)
    outcomes = {"finished": 0, "left": 0, "cancelled": 0, "refused": 0, "named": 0}

    async def client(number):
        prompt: TokensPrompt = {"prompt_token_ids": [rng.randrange(3, 250) for _ in range(rng.randint(1, 60))]}
        params = SamplingParams(max_tokens=rng.randint(1, 30), temperature=1.0, n=rng.choice((1, 1, 1, 3)), ignore_eos=True)
        patience, manner = rng.randint(0, 12), rng.choice(("leave", "cancel", "abort", "stay"))
        async with gate:
            stream = engine.generate(prompt, params, request_id=str(number))
            assert isinstance(stream, AsyncGenerator)
            try:
                if manner == "cancel":
                    async with asyncio.timeout(rng.uniform(0.0, 0.05)):
                        async for _ in stream:
                            pass
                else:
                    seen = 0
                    async for _ in stream:
                        seen += 1
                        if manner == "leave" and seen > patience:
                            outcomes["left"] += 1
                            break
                        if manner == "abort" and seen == patience:
                            outcomes["named"] += await engine.abort(str(number))
                outcomes["finished"] += 1
            except TimeoutError:
                outcomes["cancelled"] += 1
            except RefusedError as error:
                outcomes["refused"] += (error.retry_after or 0) > 0
            finally:
                await stream.aclose()

    await asyncio.gather(*(client(number) for number in range(REQUESTS)))
    stats = await settled(engine)
    check_conserved(stats)
    assert stats.received == REQUESTS
    assert outcomes["refused"] <= stats.rejected <= outcomes["refused"] + outcomes["cancelled"], (
        "some left while they were refused"
    )
    assert min(outcomes[kind] for kind in ("finished", "left", "cancelled", "named")) > 10, outcomes
    await engine.drain(0.0)


async def test_an_abort_by_name_finishes_the_stream():
    engine = await LocalEngine.start(config(), silent)
    params = SamplingParams(max_tokens=90, ignore_eos=True, n=2)
    events = []
    async for event in engine.generate({"prompt_token_ids": [5, 6, 7]}, params, request_id="mine"):
        events.append(event)
        if len(events) == 4:
            assert await engine.abort("mine")
    assert isinstance(events[0], Started)
    assert [event.finish_reason for event in events if isinstance(event, Finished)] == [FinishReason.ABORT] * 2
    assert not await engine.abort("mine")
    check_conserved(await settled(engine))
    await engine.drain(0.0)


async def test_drain_lets_requests_finish_and_refuses_new_ones():
    engine = await LocalEngine.start(config(), silent)

    async def ask(length):
        params = SamplingParams(max_tokens=length, ignore_eos=True, temperature=0.0)
        stream = engine.generate({"prompt_token_ids": [5, 6, 7]}, params)
        return sum(len(event.token_ids) for event in [event async for event in stream] if isinstance(event, Delta))

    running = asyncio.create_task(ask(60))
    while engine.stats().running == 0:
        await asyncio.sleep(0.001)
    drained = asyncio.create_task(engine.drain(30.0))
    await asyncio.sleep(0)
    with pytest.raises(DrainingError):
        await ask(1)
    assert await running == 60
    await drained
    stats = engine.stats()
    assert (stats.finished, stats.rejected) == (1, 1)
    check_conserved(stats)
