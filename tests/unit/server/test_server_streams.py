"""Merged event streams: order within a prompt, errors, and closing that aborts everything."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from jaxserve.engine.events import Delta, Finished, Started
from jaxserve.errors import CancelledRequestError, DrainingError, InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import RequestOptions
from server.context import NOBODY
from server.requests import RequestJob
from server.streams import run
from tests.support.scripted import ScriptedClient

OPTIONS = RequestOptions(tenant="acme")


def job(*prompts: str, **params: Any) -> RequestJob:
    return RequestJob(request_id="r", prompts=prompts, params=SamplingParams(**params), options=OPTIONS, names={"prompt": "text"})


async def test_events_of_each_prompt_come_in_order() -> None:
    texts = {0: "", 1: "", 2: ""}
    ends = 0
    async for which, event in run(ScriptedClient(), job("abc", "de", "f"), NOBODY):
        if isinstance(event, Started):
            assert texts[which] == ""
        elif isinstance(event, Delta):
            assert event.first_token_index == len(texts[which])
            texts[which] += event.text
        elif isinstance(event, Finished):
            ends += 1
    assert (texts, ends) == ({0: "abc", 1: "de", 2: "f"}, 3)


@pytest.mark.parametrize("prompts", [("abc",), ("abc", "def", "ghi")])
async def test_closing_aborts_every_prompt(prompts: tuple[str, ...]) -> None:
    client = ScriptedClient(delay=60.0)
    async with aclosing(run(client, job(*prompts), NOBODY)) as events:
        for _ in prompts:
            await anext(events)
        assert len(client.active) == len(prompts)
    assert (len(client.active), len(client.aborted)) == (0, len(prompts))


@pytest.mark.parametrize("prompts", [("x" * 600,), ("a", "x" * 600, "b" * 100)])
async def test_one_prompts_error_ends_all_in_the_words_of_the_client(prompts: tuple[str, ...]) -> None:
    client = ScriptedClient(delay=0.01)
    with pytest.raises(InvalidRequestError) as info:
        async for _ in run(client, job(*prompts), NOBODY):
            pass
    assert info.value.param == "text"
    assert not client.active


async def test_an_unexpected_exception_is_not_swallowed() -> None:
    client = ScriptedClient(failure=RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        async for _ in run(client, job("a", "b"), NOBODY):
            pass


@pytest.mark.parametrize(("draining", "kind"), [(False, CancelledRequestError), (True, DrainingError)])
async def test_an_aborted_sequence_is_an_error_not_an_end(draining: bool, kind: type[Exception]) -> None:
    client = ScriptedClient()
    client.killed = True
    events = run(client, job("abc"), NOBODY)
    await anext(events)
    client.draining = draining
    with pytest.raises(kind):
        await anext(events)


async def test_cancelling_the_reader_aborts() -> None:
    client = ScriptedClient(delay=60.0)

    async def read() -> None:
        async for _ in run(client, job("abc", "def"), NOBODY):
            pass

    task = asyncio.create_task(read())
    while len(client.active) < 2:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert (client.active, sorted(client.aborted)) == (set(), ["r-0", "r-1"])
