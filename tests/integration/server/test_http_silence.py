"""Streams that have nothing to say for a while."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest

from jaxserve.errors import QueueFullError
from tests.support.scripted import ScriptedClient
from tests.support.serving import serving

COMMENT = b": keep-alive\n\n"
TEXT: dict[str, Any] = {"prompt": "ab", "max_tokens": 2, "stream": True}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 2, "stream": True}


class LateClient(ScriptedClient):
    """Begins, or refuses, `late` seconds after it was asked."""

    def __init__(self, late: float, *, refusal: Exception | None = None, **given: Any) -> None:
        super().__init__(**given)
        self.late = late
        self.refusal = refusal

    async def generate(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(self.late)
        if self.refusal is not None:
            raise self.refusal
        async for event in super().generate(*arguments, **options):
            yield event


@asynccontextmanager
async def http(engine: ScriptedClient, silence: float) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(engine, sse_keepalive=silence) as servers, httpx.AsyncClient(base_url=servers.http, timeout=20) as client:
        yield client


def pieces(content: bytes) -> list[Any]:
    """Comments and events, comments in a row as one."""
    found: list[Any] = []
    for piece in content.split(b"\n\n")[:-1]:
        name = (
            "comment"
            if piece + b"\n\n" == COMMENT
            else "end"
            if piece == b"data: [DONE]"
            else json.loads(piece[len(b"data: ") :])
        )
        if name != "comment" or found[-1:] != ["comment"]:
            found.append(name)
    return found


async def test_comments_between_tokens() -> None:
    async with http(ScriptedClient(delay=0.35), 0.1) as client:
        reply = await client.post("/v1/completions", json=TEXT)
    assert reply.content.count(COMMENT) >= 4
    first, *events = pieces(reply.content)
    assert first == "comment"
    assert [event if isinstance(event, str) else event["choices"][0]["text"] for event in events] == [
        "a",
        "comment",
        "b",
        "",
        "end",
    ]


async def test_no_comment_where_there_is_no_silence() -> None:
    async with http(ScriptedClient(delay=0.05), 1.0) as client:
        reply = await client.post("/v1/completions", json={**TEXT, "prompt": "x" * 30, "max_tokens": 30})
    assert COMMENT not in reply.content
    assert reply.content.count(b"data: ") == 32


async def test_a_stream_begins_before_its_first_token() -> None:
    async with http(LateClient(1.0), 0.1) as client, client.stream("POST", "/v1/completions", json=TEXT) as reply:
        assert reply.status_code == 200
        parts = [part async for part in reply.aiter_bytes()]
    assert parts[0] == COMMENT
    assert len(parts) > 5
    assert pieces(b"".join(parts))[0] == "comment"
    assert pieces(b"".join(parts))[-1] == "end"


@pytest.mark.parametrize(("late", "status"), [(0.0, 429), (0.5, 200)])
async def test_a_refusal_has_its_status_if_it_comes_in_time(late: float, status: int) -> None:
    async with http(LateClient(late, refusal=QueueFullError("full")), 0.2) as client:
        reply = await client.post("/v1/completions", json=TEXT)
    assert reply.status_code == status
    if status == 200:
        *_, event = pieces(reply.content)
        assert event["error"]["code"] == "queue_full"
        assert b"[DONE]" not in reply.content
    else:
        assert reply.json()["error"]["code"] == "queue_full"
        assert "retry-after" in reply.headers


async def test_a_client_that_leaves_before_the_first_token() -> None:
    engine = ScriptedClient(delay=60.0)
    async with http(engine, 0.1) as client:
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        async with asyncio.timeout(60):
            while not engine.active:
                await asyncio.sleep(0.005)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            while engine.active:
                await asyncio.sleep(0.005)
    assert len(engine.aborted) == 1


async def test_sdks_pass_over_comments() -> None:
    async with serving(LateClient(0.3, delay=0.3), sse_keepalive=0.1) as servers:
        async with openai.AsyncOpenAI(base_url=f"{servers.http}/v1", api_key="none", max_retries=0) as sdk:
            chunks = await sdk.chat.completions.create(model="echo", **CHAT)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in chunks]) == "ab"
            events = await sdk.responses.create(model="echo", input="ab", max_output_tokens=16, stream=True)
            assert [event.type async for event in events][-1] == "response.completed"
        async with (
            anthropic.AsyncAnthropic(base_url=servers.http, api_key="none", max_retries=0) as other,
            other.messages.stream(model="echo", messages=CHAT["messages"], max_tokens=2) as stream,
        ):
            assert "".join([text async for text in stream.text_stream]) == "ab"
