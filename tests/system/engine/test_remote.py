"""What only an engine in another process can do: die alone, come back, and have several front ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
import zmq
import zmq.asyncio

from jaxserve.engine.calls import Flush
from jaxserve.engine.events import Delta, Started
from jaxserve.engine.frontend import Frontend
from jaxserve.engine.remote.codec import encode
from jaxserve.engine.remote.messages import Add, Farewell, Hello, Welcome, decode_from_engine, protocol
from jaxserve.engine.remote.process import EngineProcess
from jaxserve.engine.remote.reports import EngineSpec
from jaxserve.errors import ConfigError, EngineDeadError, JaxserveError
from jaxserve.sampling.params import SamplingParams
from tests.support.hash_engine import BUILDER, PAGES, VOCAB, RemoteEngine, remote_engine
from tests.support.hash_executor import expected
from tests.support.tiny_checkpoint import write_tiny_checkpoint

PATIENCE = 30.0


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
async def engine(tokenizer_path: str) -> AsyncIterator[RemoteEngine]:
    async with remote_engine(tokenizer=tokenizer_path, step_seconds=0.002) as engine:
        yield engine


async def tokens(client: Frontend, **given: Any) -> list[int]:
    """Those of the first sequence, then those of the next one."""
    deltas: list[Delta] = []
    async with asyncio.timeout(PATIENCE):
        async for event in client.generate({"prompt_token_ids": [5, 6]}, SamplingParams(**given)):
            if isinstance(event, Delta):
                deltas.append(event)
    return [token for delta in sorted(deltas, key=lambda delta: delta.index) for token in delta.token_ids]


async def until_free(client: Frontend) -> None:
    async with asyncio.timeout(PATIENCE):
        while (stats := client.stats()).running or stats.waiting or stats.pages_free != PAGES - 1:
            await asyncio.sleep(0.01)


async def test_a_killed_engine_is_noticed_and_the_next_one_found(engine: RemoteEngine) -> None:
    client = await engine.connect("a")
    running = [asyncio.create_task(tokens(client, max_tokens=200)) for _ in range(8)]
    async with asyncio.timeout(PATIENCE):
        while client.stats().running < 8:
            await asyncio.sleep(0.01)
    calling = asyncio.create_task(client.call(Flush()))
    os.kill(engine.process.pid, signal.SIGSTOP)  # what it was told it cannot answer any more
    os.kill(engine.process.pid, signal.SIGKILL)
    async with asyncio.timeout(2.0):
        endings = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(ending, EngineDeadError) for ending in endings), endings
        await asyncio.gather(calling, return_exceptions=True)
    assert await engine.process.ended() == -signal.SIGKILL
    assert (client.stats().running, client.stats().active) == (0, 0)
    with pytest.raises(EngineDeadError):
        client.check_health()

    await engine.restart()
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                client.check_health()
                break
            except EngineDeadError:
                await asyncio.sleep(0.02)
    assert await tokens(client, max_tokens=9) == expected([5, 6], 9, vocab=VOCAB)
    assert client.heartbeat_age() < 5.0
    stats = client.stats()
    assert stats.received == stats.finished + stats.aborted + stats.rejected
    await client.drain(0.0)


async def test_a_front_end_that_goes_away_leaves_nothing_behind(tokenizer_path: str) -> None:
    """Long before its requests would have come to their end."""
    async with remote_engine(tokenizer=tokenizer_path, step_seconds=0.1) as engine:
        stays, goes = await engine.connect("a"), await engine.connect("b")
        others = [asyncio.create_task(tokens(goes, max_tokens=200)) for _ in range(12)]
        own = asyncio.create_task(tokens(stays, max_tokens=30))
        async with asyncio.timeout(PATIENCE):
            while stays.stats().running < 4:
                await asyncio.sleep(0.01)
        await goes._link.close()
        endings = await asyncio.gather(*others, return_exceptions=True)
        assert all(isinstance(ending, EngineDeadError) for ending in endings)
        assert await own == expected([5, 6], 30, vocab=VOCAB)
        async with asyncio.timeout(10.0):
            await until_free(stays)
        await stays.drain(0.0)


async def test_front_ends_share_no_sequence_and_no_seed(engine: RemoteEngine) -> None:
    """Though they number their requests alike, and clients name them alike."""
    first, second = await engine.connect("0."), await engine.connect("1.")
    prepared = [
        client._intake.prepare({"prompt_token_ids": [5]}, SamplingParams(n=2), "name", 0.0)
        for client in (first, second)
        for _ in range(2)
    ]
    assert len({request.id for requests in prepared for request in requests}) == 8
    assert len({request.seed for requests in prepared for request in requests}) == 8
    both = await asyncio.gather(*(tokens(client, max_tokens=50, n=2) for client in (first, second)))
    assert both[0] == both[1]
    await first.drain(0.0)
    await second.drain(0.0)


async def test_a_front_end_that_does_not_read_is_cut_off_and_told(tokenizer_path: str) -> None:
    async with remote_engine(tokenizer=tokenizer_path, max_unread=2, step_seconds=0.005) as engine:
        watching = await engine.connect("a")
        requests = [
            request
            for number in range(8)
            for request in watching._intake.prepare(
                {"prompt_token_ids": [number + 1]}, SamplingParams(max_tokens=250, logprobs=20), "slow", time.monotonic()
            )
        ]
        context = zmq.asyncio.Context()
        with context.socket(zmq.DEALER) as slow:
            slow.set(zmq.RCVHWM, 1)
            slow.set(zmq.RCVBUF, 4096)
            slow.connect(engine.spec.address)
            await slow.send(encode(Hello(protocol())))
            for turn in range(40):  # more than the kernel's buffers hold
                for request in requests:
                    await slow.send(encode(Add.of([replace(request, id=f"{request.id}-{turn}")])))
            async with asyncio.timeout(PATIENCE):
                while watching.stats().prefix_queried_tokens == 0:
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(12.0):  # all of its tokens would take twice as long
                await until_free(watching)
            async with asyncio.timeout(PATIENCE):
                while not isinstance(last := decode_from_engine(await slow.recv()), Farewell):
                    pass
            assert "did not read" in last.error.message
        await until_free(watching)
        assert await tokens(watching, max_tokens=9) == expected([5, 6], 9, vocab=VOCAB)
        await watching.drain(0.0)
        context.term()


async def test_strangers_are_sent_away(engine: RemoteEngine) -> None:
    context = zmq.asyncio.Context()
    with context.socket(zmq.DEALER) as stranger:
        stranger.connect(engine.spec.address)
        for first in (b"\xc1 what is no message", encode(Hello("jaxserve 0.0.0"))):
            await stranger.send(first)
            async with asyncio.timeout(PATIENCE):
                answer = decode_from_engine(await stranger.recv())
            assert isinstance(answer, Farewell)
            reason = answer.error.message
        assert "jaxserve 0.0.0" in reason
        await stranger.send(encode(Hello(protocol())))
        assert isinstance(decode_from_engine(await stranger.recv()), Welcome)
    context.term()


async def test_what_keeps_an_engine_from_being_built_is_told_with_its_class() -> None:
    argument = {"tokenizer": "", "refuses_to_build": "no such model"}
    process = await EngineProcess.start(EngineSpec(address="ipc:///nowhere", argument=argument, builder=BUILDER))
    with pytest.raises(ConfigError, match="no such model") as refused:
        await process.ready(lambda *_: None)
    assert refused.value.param == "model"
    assert await process.ended() == 2


async def test_an_engine_that_other_machines_would_reach_without_keys_is_not_built() -> None:
    argument = {"tokenizer": "", "refuses_to_build": "it was built"}
    process = await EngineProcess.start(EngineSpec(address="tcp://0.0.0.0:1", argument=argument, builder=BUILDER))
    with pytest.raises(ConfigError, match="keys"):
        await process.ready(lambda *_: None)
    assert await process.ended() == 2


async def test_an_engine_that_ends_without_a_word(tokenizer_path: str) -> None:
    process = await EngineProcess.start(EngineSpec(address="ipc:///nowhere", argument={}, builder=BUILDER))
    await process.kill()
    with pytest.raises(JaxserveError, match="SIGKILL"):
        await process.ready(lambda *_: None)


async def test_a_stopped_engine_ends_with_0(engine: RemoteEngine) -> None:
    client = await engine.connect()
    async with aclosing(client.generate({"prompt_token_ids": [5]}, SamplingParams(max_tokens=200))) as events:  # type: ignore[type-var]
        assert isinstance(await anext(events), Started)
        await engine.process.stop(PATIENCE)
    assert await engine.process.ended() == 0
    await client.drain(0.0)


async def test_a_front_end_that_fell_behind_catches_up_with_fewer_events(engine: RemoteEngine) -> None:
    """What waits for it is taken in before readers run, so that they find the tokens of several steps in one event."""
    client = await engine.connect("a")
    deltas: list[Delta] = []
    async with asyncio.timeout(PATIENCE):
        async for event in client.generate({"prompt_token_ids": [5, 6]}, SamplingParams(max_tokens=200)):
            if isinstance(event, Delta):
                deltas.append(event)
                if len(deltas) == 1:
                    time.sleep(0.5)  # the event loop is held up, as by too much work
    assert [token for delta in deltas for token in delta.token_ids] == expected([5, 6], 200, vocab=VOCAB)
    assert max(len(delta.token_ids) for delta in deltas) > 4
    await client.drain(0.0)
