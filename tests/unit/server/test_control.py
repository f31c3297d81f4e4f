"""Calls and notices between supervisor and front ends, over a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from jaxserve.errors import DrainingError, InternalError, RateLimitError
from server.processes.control import Control, answer_calls, notify

PATIENCE = 10.0


def refuse(name: str, payload: bytes) -> bytes:
    raise RateLimitError(f"{name} asked too often", param="tokens", retry_after=2.5)


def fail(name: str, payload: bytes) -> bytes:
    raise RuntimeError("a bug")


class Seen:
    """What came."""

    def __init__(self) -> None:
        self.notices: list[bytes] = []
        self.told: list[str] = []

    def tell(self, name: str, payload: bytes) -> bytes:
        self.told.append(name)
        return b""


@asynccontextmanager
async def both_ends() -> AsyncIterator[tuple[Control, asyncio.StreamWriter, Seen]]:
    seen = Seen()
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    control = Control(*await asyncio.open_connection(sock=theirs), {"news": seen.notices.append})
    services = {"echo": lambda name, payload: name.encode() + payload, "refuse": refuse, "fail": fail, "tell": seen.tell}
    answering = asyncio.create_task(answer_calls(reader, writer, "0.0", services))
    try:
        async with asyncio.timeout(PATIENCE):
            yield control, writer, seen
    finally:
        writer.close()
        await asyncio.gather(answering, control.gone())
        control._writer.close()


async def test_calls_side_by_side() -> None:
    async with both_ends() as (control, _, _):
        answers = await asyncio.gather(*(control.call("echo", str(number).encode()) for number in range(100)))
        assert answers == [f"0.0{number}".encode() for number in range(100)]


async def test_errors_keep_their_class() -> None:
    async with both_ends() as (control, _, _):
        with pytest.raises(RateLimitError, match=r"0.0 asked too often") as refused:
            await control.call("refuse")
        assert (refused.value.param, refused.value.retry_after) == ("tokens", 2.5)
        with pytest.raises(InternalError, match="a bug"):
            await control.call("fail")
        with pytest.raises(InternalError, match="no service 'nonsense'"):
            await control.call("nonsense")


async def test_notices_and_words_that_need_no_answer() -> None:
    async with both_ends() as (control, writer, seen):
        notify(writer, "news", b"it rains")
        control.tell("tell")
        await control.call("echo")
        assert (seen.notices, seen.told) == ([b"it rains"], ["0.0"])


async def test_a_caller_that_went_away_is_passed_over() -> None:
    async with both_ends() as (control, _, _):
        calling = asyncio.create_task(control.call("echo", b"1"))
        await asyncio.sleep(0)
        calling.cancel()
        assert await control.call("echo", b"2") == b"0.02"


async def test_without_a_supervisor_calls_end() -> None:
    async with both_ends() as (control, writer, _):
        calling = asyncio.create_task(control.call("echo"))
        await asyncio.sleep(0)
        writer.transport.abort()
        with pytest.raises(DrainingError, match="the supervisor is gone"):
            await calling
        await control.gone()
        with pytest.raises(DrainingError, match="the supervisor is gone"):
            await control.call("echo")
