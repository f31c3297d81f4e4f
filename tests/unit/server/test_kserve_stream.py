"""Requests of one stream, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest

from server.context import NOBODY, RequestContext
from server.grpc.kserve.stream import side_by_side


async def payloads(*given: bytes) -> AsyncIterator[bytes]:
    for payload in given:
        yield payload


async def test_no_request_runs_ahead_of_the_client() -> None:
    made: list[int] = []

    async def answer(payload: bytes, context: RequestContext) -> AsyncGenerator[int, None]:
        for number in range(3):
            made.append(number)
            yield number

    async with asyncio.timeout(5), aclosing(side_by_side(payloads(b"x"), answer, NOBODY)) as messages:
        for number in range(3):
            assert await anext(messages) == number
            await asyncio.sleep(0.01)
            assert made == list(range(number + 1))
        assert [message async for message in messages] == []


async def test_closing_ends_what_runs() -> None:
    ended: list[bytes] = []

    async def answer(payload: bytes, context: RequestContext) -> AsyncGenerator[bytes, None]:
        try:
            yield payload
            await asyncio.Event().wait()
        finally:
            ended.append(payload)

    async with asyncio.timeout(5):
        messages = side_by_side(payloads(b"a", b"b"), answer, NOBODY)
        assert {await anext(messages), await anext(messages)} == {b"a", b"b"}
        await messages.aclose()
    assert sorted(ended) == [b"a", b"b"]


async def test_what_breaks_the_stream_comes_to_its_reader() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"a"
        raise ConnectionError("gone")

    async def answer(payload: bytes, context: RequestContext) -> AsyncGenerator[bytes, None]:
        yield payload

    async with asyncio.timeout(5):
        with pytest.raises(ExceptionGroup, match="unhandled"):
            assert [message async for message in side_by_side(broken(), answer, NOBODY)]
