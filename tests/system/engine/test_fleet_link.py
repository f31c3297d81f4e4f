"""One front end over several engines in processes of their own: streams go on in another where theirs dies, hangs or leaves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq

from jaxserve.engine.calls import Flush
from jaxserve.engine.events import Delta, Finished
from jaxserve.engine.frontend import Frontend
from jaxserve.engine.remote.curve import CurveKeys
from jaxserve.engine.remote.link import RemoteLink
from jaxserve.engine.remote.process import EngineProcess
from jaxserve.engine.remote.reports import EngineSpec
from jaxserve.engine.replicas.fleet import FleetSettings
from jaxserve.errors import EngineDeadError, JaxserveError
from jaxserve.sampling.params import SamplingParams
from tests.support.hash_engine import BUILDER, EngineFleet, engine_fleet, remote_engine
from tests.support.tiny_checkpoint import write_tiny_checkpoint

pytestmark = pytest.mark.asyncio

STREAMS, LENGTH = 16, 60
SLOW = 0.01  # seconds of a step: a stream takes long enough to be in the middle of
QUICK = FleetSettings(hang_seconds=0.5, wait_seconds=5.0, drain_seconds=0.2)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


async def read(front: Frontend, number: int, **more: Any) -> list[list[int]]:
    """The tokens of every sequence of a request, as they came."""
    params = SamplingParams(temperature=1.0, seed=number, max_tokens=LENGTH, **more)
    prompt = [number % 7 + 1, *range(1, 10 + number)]
    tokens: list[list[int]] = [[] for _ in range(params.n)]
    ended = 0
    async for event in front.generate({"prompt_token_ids": prompt}, params):
        if isinstance(event, Delta):
            tokens[event.index] += event.token_ids
        elif isinstance(event, Finished):
            ended += 1
    assert ended == params.n
    return tokens


async def all_streams(front: Frontend, **more: Any) -> list[list[list[int]]]:
    return list(await asyncio.gather(*(read(front, number, **more) for number in range(STREAMS))))


async def in_the_middle(fleet: EngineFleet, happens: Callable[[], None], **more: Any) -> list[list[list[int]]]:
    """The streams, while something happens once they all run."""
    streams = asyncio.create_task(all_streams(fleet.front, **more))
    while fleet.link.load().running < STREAMS * more.get("n", 1):
        await asyncio.sleep(SLOW)
    await asyncio.sleep(10 * SLOW)
    happens()
    async with asyncio.timeout(60):
        return await streams


def signal_to(fleet: EngineFleet, place: int, number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(fleet.engines[place].process.pid, number)


async def restart(fleet: EngineFleet, place: int) -> None:
    await fleet.engines[place].process.ended()
    await fleet.engines[place].restart()


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not what():
            await asyncio.sleep(0.02)


def sequences(fleet: EngineFleet) -> Sequence[int]:
    return [state.sequences for state in fleet.link.replicas.values()]


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"logprobs": 3}, {"prompt_logprobs": 1}], ids=str)
async def test_streams_of_an_engine_that_is_killed_go_on_in_another(tokenizer: str, more: dict[str, Any]) -> None:
    """None ends, and none has a token that it would not have had, or lacks one."""
    async with engine_fleet(2, QUICK, tokenizer=tokenizer, step_seconds=SLOW, max_num_seqs=64, num_pages=4001) as fleet:
        wanted = await all_streams(fleet.front, **more)
        assert await in_the_middle(fleet, signal_to(fleet, 0, signal.SIGKILL), **more) == wanted
        assert sequences(fleet) == [0, 0]
        assert [state.ready for state in fleet.link.replicas.values()] == [False, True]
        await until(lambda: fleet.front.stats().pages_free == fleet.front.stats().pages_total)
        await restart(fleet, 0)
        await until(lambda: all(state.ready for state in fleet.link.replicas.values()))
        assert await all_streams(fleet.front, **more) == wanted


async def test_streams_of_an_engine_that_hangs_go_on_and_its_late_words_count_no_more(tokenizer: str) -> None:
    async with engine_fleet(2, QUICK, tokenizer=tokenizer, step_seconds=SLOW, max_num_seqs=32, num_pages=2001) as fleet:
        wanted = await all_streams(fleet.front)
        assert await in_the_middle(fleet, signal_to(fleet, 1, signal.SIGSTOP)) == wanted
        assert [state.reason for state in fleet.link.replicas.values()] == ["", "it hangs"]
        signal_to(fleet, 1, signal.SIGCONT)()
        await until(lambda: all(state.ready for state in fleet.link.replicas.values()))
        assert await all_streams(fleet.front) == wanted
        await until(lambda: fleet.front.stats().pages_free == fleet.front.stats().pages_total)


async def test_replicas_come_and_go_under_load(tokenizer: str) -> None:
    async with engine_fleet(2, QUICK, tokenizer=tokenizer, step_seconds=SLOW, max_num_seqs=32, num_pages=2001) as fleet:
        wanted = await all_streams(fleet.front)
        assert await in_the_middle(fleet, lambda: fleet.set_replicas(1)) == wanted  # what drains too long moves
        fleet.set_replicas(0, 1)
        await until(lambda: all(state.ready for state in fleet.link.replicas.values()))
        assert await all_streams(fleet.front) == wanted
        await fleet.front.call(Flush())


async def test_where_all_are_gone_requests_fail_in_bounded_time_and_come_back_with_an_engine(tokenizer: str) -> None:
    settings = FleetSettings(hang_seconds=0.5, wait_seconds=0.3)
    async with engine_fleet(1, settings, tokenizer=tokenizer, step_seconds=SLOW, num_pages=2001) as fleet:
        with pytest.raises(JaxserveError) as raised:
            await in_the_middle(fleet, signal_to(fleet, 0, signal.SIGKILL))
        assert raised.value.retry_after is not None
        with pytest.raises(EngineDeadError):
            fleet.front.check_health()
        await restart(fleet, 0)
        async with asyncio.timeout(20):
            while True:
                try:
                    fleet.front.check_health()
                    break
                except EngineDeadError:
                    await asyncio.sleep(0.02)
        assert len((await read(fleet.front, 3))[0]) == LENGTH


async def test_an_engine_of_another_model_does_not_join(tokenizer: str) -> None:
    async with (
        engine_fleet(1, QUICK, tokenizer=tokenizer) as fleet,
        remote_engine(tokenizer=tokenizer, max_waiting=7) as other,
    ):
        fleet.set_replicas(0, other=other.spec.address)
        await until(lambda: "limits" in fleet.link.replicas["other"].reason)
        assert not fleet.link.replicas["other"].ready
        assert len((await read(fleet.front, 3))[0]) == LENGTH


async def test_a_replica_of_another_release_does_not_join(tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so itself: nothing that is on the wire is kept stable between releases."""
    async with engine_fleet(1, QUICK, tokenizer=tokenizer) as fleet, remote_engine(tokenizer=tokenizer) as other:
        monkeypatch.setattr("jaxserve.engine.remote.link.protocol", lambda: "jaxserve 0.0.0")
        fleet.set_replicas(0, other=other.spec.address)
        await until(lambda: "the front end jaxserve 0.0.0: both must be the same" in fleet.link.replicas["other"].reason)
        assert [state.ready for state in fleet.link.replicas.values()] == [True, False]
        assert len((await read(fleet.front, 3))[0]) == LENGTH


async def test_who_has_not_the_key_does_not_get_in(tokenizer: str, tmp_path: Path) -> None:
    """An engine on a network: its own front ends find it, by their own clock; others never hear of it."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as probe:
        port = probe.bind_to_random_port("tcp://127.0.0.1")
    keys = CurveKeys.new()
    spec = EngineSpec(address=f"tcp://127.0.0.1:{port}", argument={"tokenizer": tokenizer}, builder=BUILDER, keys=keys)
    process = await EngineProcess.start(spec)
    strangers = [RemoteLink(spec.address), RemoteLink(spec.address, CurveKeys.new().public)]
    friend = RemoteLink(spec.address, keys.public)
    try:
        async with asyncio.timeout(60):
            await process.ready(lambda *_: None)
            assert (await friend.described()).model.name == "hash"
        for stranger in strangers:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await stranger.described()
    finally:
        for link in (friend, *strangers):
            await link.close()
        await process.kill()
