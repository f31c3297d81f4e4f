"""Tokenizer processes: the same tokens as in process, whatever becomes of the workers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from jaxserve.errors import InvalidRequestError, OverloadedError
from jaxserve.tokenizer.load import load_tools
from jaxserve.tokenizer.pool import MAX_BATCH, ProcessTexts, open_texts
from jaxserve.tokenizer.texts import LONG, TextTools, ThreadTexts
from jaxserve.tokenizer.worker import WorkerSpec
from jaxserve.types import OwnTokenIds

PICO = str(Path(__file__).resolve().parents[3] / "jaxserve" / "assets" / "pico")
PATIENCE = 30.0
CHAT = [{"role": "user", "content": "What is 17 + 25?"}]


@pytest.fixture(scope="module")
def tools() -> TextTools:
    return load_tools(PICO, None)


async def until_workers(texts: ProcessTexts, count: int) -> list[int]:
    async with asyncio.timeout(PATIENCE):
        while len(texts.workers) != count:
            await asyncio.sleep(0.01)
    return texts.workers


@pytest.fixture
async def texts(tools: TextTools) -> AsyncIterator[ProcessTexts]:
    texts = ProcessTexts(tools, WorkerSpec(PICO, None), 1, hang_seconds=1.0)
    try:
        yield texts
    finally:
        await texts.close()


class Counting:
    """Counts what is done in process."""

    def __init__(self, texts: ProcessTexts) -> None:
        self.count = 0
        for name in ("encode", "render"):
            setattr(texts._here, name, self._counted(getattr(texts._here, name)))

    def _counted(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return await method(*arguments, **named)

        return counted


async def test_tokens_are_those_of_this_process(texts: ProcessTexts, tools: TextTools) -> None:
    here = Counting(texts)
    words = [f"the number {number}, a smile \N{SMILING FACE WITH OPEN MOUTH}" for number in range(40)]
    assert await texts.encode(words[0]) == tools.encode(words[0])
    assert here.count == 1, "no worker has started yet"
    await until_workers(texts, 1)
    found = await asyncio.gather(*(texts.encode(word) for word in words), texts.render(CHAT, {"add_generation_prompt": True}))
    assert found == [*(tools.encode(word) for word in words), tools.render(CHAT, {"add_generation_prompt": True})]
    assert here.count == 1, "the worker did it"


async def test_tokens_are_known_to_be_our_own_wherever_they_were_made(texts: ProcessTexts, tools: TextTools) -> None:
    here = ThreadTexts(tools)
    await until_workers(texts, 1)
    for one in (texts, here):
        assert type(await one.encode("hello")) is OwnTokenIds
        assert type(await one.render(CHAT, {})) is OwnTokenIds
    await here.close()


async def test_what_no_worker_answers_is_told(tools: TextTools) -> None:
    told: list[None] = []
    texts = ProcessTexts(tools, WorkerSpec(PICO, None), 1, on_fallback=lambda: told.append(None))
    await texts.encode("no worker has started yet")
    await texts.render(CHAT, {"add_generation_prompt": True})
    assert len(told) == 2
    await until_workers(texts, 1)
    await texts.encode("the worker does it")
    assert len(told) == 2
    await texts.close()


async def test_what_is_wrong_is_told_as_in_process(texts: ProcessTexts, tools: TextTools) -> None:
    await until_workers(texts, 1)
    with pytest.raises(InvalidRequestError):
        await texts.render([{"role": "user", "content": "x"}], {"continue_final_message": True, "add_generation_prompt": True})
    for odd in ("\ud800", "a\ud83d"):
        try:
            wanted = tools.encode(odd)
        except Exception as error:
            with pytest.raises(type(error)):
                await texts.encode(odd)
        else:
            assert await texts.encode(odd) == wanted
    assert len(texts.workers) == 1


async def test_a_killed_worker_costs_no_request(texts: ProcessTexts, tools: TextTools) -> None:
    (worker,) = await until_workers(texts, 1)
    os.kill(worker, signal.SIGSTOP)  # what it gets now it will never do
    waiting = [asyncio.create_task(texts.encode(f"number {number}")) for number in range(30)]
    await asyncio.sleep(0.05)
    os.kill(worker, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*waiting) == [tools.encode(f"number {number}") for number in range(30)]
    (other,) = await until_workers(texts, 1)
    assert other != worker
    here = Counting(texts)
    assert await texts.encode("back") == tools.encode("back")
    assert here.count == 0


async def test_an_idle_worker_that_dies_is_noticed(
    texts: ProcessTexts, tools: TextTools, caplog: pytest.LogCaptureFixture
) -> None:
    (worker,) = await until_workers(texts, 1)
    os.kill(worker, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        while texts.workers == [worker]:
            await asyncio.sleep(0.01)
    assert await texts.encode("now") == tools.encode("now")
    await until_workers(texts, 1)
    assert "tokenizer process 0 ended, killed by SIGKILL (probably out of memory" in caplog.text


async def test_a_worker_that_hangs_is_ended(texts: ProcessTexts, tools: TextTools, caplog: pytest.LogCaptureFixture) -> None:
    (worker,) = await until_workers(texts, 1)
    os.kill(worker, signal.SIGSTOP)
    async with asyncio.timeout(PATIENCE):
        assert await texts.encode("hello") == tools.encode("hello")
        while texts.workers in ([], [worker]):
            await asyncio.sleep(0.01)
    assert "killed because it did not respond in time" in caplog.text


async def test_a_conversation_that_a_worker_hangs_at_is_refused(texts: ProcessTexts, tools: TextTools) -> None:
    """It would hang in this process, too. What the worker had besides is done here, and another worker comes."""
    (worker,) = await until_workers(texts, 1)
    here = Counting(texts)
    os.kill(worker, signal.SIGSTOP)
    first = asyncio.create_task(texts.render(CHAT, {}))
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        assert await texts.encode("hello") == tools.encode("hello")
        with pytest.raises(OverloadedError, match="the chat template was not done with these messages after 1 s"):
            await first
        while texts.workers in ([], [worker]):
            await asyncio.sleep(0.01)
        assert here.count <= 1
        assert await texts.render(CHAT, {}) == tools.render(CHAT, {})


async def test_several_workers_share(tools: TextTools) -> None:
    texts = ProcessTexts(tools, WorkerSpec(PICO, None), 2)
    await until_workers(texts, 2)
    here = Counting(texts)
    assert await asyncio.gather(*(texts.encode(str(n)) for n in range(100))) == [tools.encode(str(n)) for n in range(100)]
    os.kill(texts.workers[0], signal.SIGKILL)
    assert await asyncio.gather(*(texts.encode(str(n)) for n in range(100))) == [tools.encode(str(n)) for n in range(100)]
    assert here.count <= 2 * MAX_BATCH
    await texts.close()


async def test_closing_answers_what_waits(texts: ProcessTexts, tools: TextTools) -> None:
    (worker,) = await until_workers(texts, 1)
    os.kill(worker, signal.SIGSTOP)
    waiting = [asyncio.create_task(texts.encode("x")) for _ in range(3)]
    await asyncio.sleep(0.05)
    texts._hang_seconds = PATIENCE
    closing = asyncio.create_task(texts.close())
    async with asyncio.timeout(PATIENCE):
        endings = await asyncio.gather(*waiting, return_exceptions=True)
        await closing
    assert all(ending == tools.encode("x") or isinstance(ending, RuntimeError) for ending in endings)


async def test_no_processes_are_threads() -> None:
    texts = await open_texts(PICO, None, 0)
    assert isinstance(texts, ThreadTexts)
    assert await texts.encode("hi") == texts.tools.encode("hi")
    await texts.close()
    texts = await open_texts(PICO, None, 1)
    assert isinstance(texts, ProcessTexts)
    await texts.close()


async def test_what_nobody_waits_for_any_more_is_not_done(texts: ProcessTexts, tools: TextTools) -> None:
    (worker,) = await until_workers(texts, 1)
    os.kill(worker, signal.SIGSTOP)
    done, do = 0, texts._do

    async def counting(child: Any, batch: Any) -> bool:
        nonlocal done
        done += len(batch)
        return await do(child, batch)

    texts._do = counting  # type: ignore[method-assign]
    first = asyncio.create_task(texts.encode("the worker has this one"))
    while not done:
        await asyncio.sleep(0)
    left = [asyncio.create_task(texts.encode(f"nobody waits for {number}")) for number in range(5)]
    stays = asyncio.create_task(texts.encode("somebody waits"))
    while texts._jobs.qsize() < 6:
        await asyncio.sleep(0)
    for task in left:
        task.cancel()
    os.kill(worker, signal.SIGCONT)
    assert await stays == tools.encode("somebody waits")
    assert await first == tools.encode("the worker has this one")
    assert done == 2


async def test_short_texts_go_before_long_ones_and_never_with_them(texts: ProcessTexts, tools: TextTools) -> None:
    (worker,) = await until_workers(texts, 1)
    os.kill(worker, signal.SIGSTOP)
    first = asyncio.create_task(texts.encode("the worker has this one"))
    ended: list[str] = []

    async def encode(name: str, text: str) -> None:
        assert await texts.encode(text) == tools.encode(text)
        ended.append(name)

    waiting = [asyncio.create_task(encode(name, text)) for name, text in (("long", "ha" * LONG), ("a", "a"), ("b", "b"))]
    while texts._jobs.qsize() < 3:
        await asyncio.sleep(0)
    os.kill(worker, signal.SIGCONT)
    await asyncio.gather(first, *waiting)
    assert ended == ["a", "b", "long"]
