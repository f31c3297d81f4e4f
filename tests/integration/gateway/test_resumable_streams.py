"""Streams that survive their connection: numbered, read on from anywhere, replaced, ended, and nobody else's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from jaxserve.engine.events import Delta, Event
from jaxserve.errors import InternalError
from jaxserve.sampling.params import SamplingParams
from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving, serving

from .conftest import bearer, delivered, usage

PROMPT = "to be resumed"  # of which the answer is a token a byte
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": len(PROMPT), "stream": True}
EVENTS = len(PROMPT) + 2  # the finish reason, and [DONE]
ALL = 10**6


class SteppedClient(ScriptedClient):
    """Says as many tokens as it is allowed to."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = asyncio.Semaphore(0)

    def allow(self, tokens: int) -> None:
        for _ in range(tokens):
            self.allowed.release()

    async def _events(self, request_id: str, ids: list[int], params: SamplingParams) -> AsyncIterator[Event]:
        async for event in super()._events(request_id, ids, params):
            if isinstance(event, Delta):
                await self.allowed.acquire()
            yield event

    async def until_idle(self) -> None:
        async with asyncio.timeout(60):
            while self.active:
                await asyncio.sleep(0.01)


@pytest.fixture
def engine() -> SteppedClient:
    return SteppedClient()


def asked(stream_id: str, who: str = "free", **fields: Any) -> dict[str, Any]:
    headers = {**bearer(who), "X-Conversation-Id": stream_id}
    return {"method": "POST", "url": "/v1/completions", "json": {**BODY, **fields}, "headers": headers}


def events_of(text: str) -> list[tuple[int | None, str]]:
    """Events of a stream with their numbers; comments are no events."""
    found = []
    for block in text.split("\n\n")[:-1]:
        lines = [line.partition(": ") for line in block.split("\n") if not line.startswith(":")]
        if lines:
            fields = {name: value for name, _, value in lines}
            found.append((int(fields["id"]) if "id" in fields else None, fields["data"]))
    return found


def said(events: list[tuple[int | None, str]]) -> list[Any]:
    return [data if data == "[DONE]" else json.loads(data)["choices"] for _, data in events]


async def some(reply: httpx.Response, count: int) -> list[tuple[int | None, str]]:
    """The next events of a stream."""
    text = ""
    async for piece in reply.aiter_text():
        text += piece
        if len(events_of(text)) >= count:
            break
    return events_of(text)


async def resumed(http: httpx.AsyncClient, stream_id: str, have: int = 0, who: str = "free") -> httpx.Response:
    return await http.get(f"/v1/streams/{stream_id}", params={"from": have}, headers=bearer(who))


async def test_what_a_cut_connection_missed_comes_once_and_in_order(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.allow(ALL)
    whole = await http.post("/v1/completions", json=BODY, headers=bearer("free"))
    assert b"id: " not in whole.content
    assert "x-stream-id" not in whole.headers
    engine.allowed = asyncio.Semaphore(4)
    async with http.stream(**asked("cut")) as first:
        got = await some(first, 4)
        assert first.headers["x-stream-id"] == "cut"
    engine.allow(ALL)
    rest = await resumed(http, "cut", 4)
    assert rest.headers["x-stream-id"] == "cut"
    assert rest.headers["content-type"] == whole.headers["content-type"]
    both = got + events_of(rest.text)
    assert [number for number, _ in both] == list(range(1, EVENTS + 1))
    assert said(both) == said(events_of(whole.text))
    assert (len(engine.options), engine.aborted) == (2, [])
    for have in range(EVENTS + 1):
        assert events_of((await resumed(http, "cut", have)).text) == both[have:], have
    assert {number for number, _ in events_of(whole.text)} == {None}


async def test_it_goes_on_with_nobody_there(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.allow(2)
    async with http.stream(**asked("alone")) as first:
        await some(first, 2)
    engine.allow(ALL)
    await engine.until_idle()
    assert len(events_of((await resumed(http, "alone")).text)) == EVENTS
    assert engine.aborted == []


async def test_a_resumed_stream_begins_at_once_and_any_number_read_it(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.allow(3)
    async with http.stream(**asked("two")) as first:
        await some(first, 3)
        async with (
            http.stream("GET", "/v1/streams/two?from=3", headers=bearer("free")) as second,
            http.stream("GET", "/v1/streams/two", headers=bearer("free")) as third,
        ):
            pieces = second.aiter_text()
            assert await anext(pieces) == ": keep-alive\n\n", "though the next token has not come"
            engine.allow(ALL)
            text = "".join([piece async for piece in pieces])
            everything = await third.aread()
    assert [number for number, _ in events_of(text)] == list(range(4, EVENTS + 1))
    assert [number for number, _ in events_of(everything.decode())] == list(range(1, EVENTS + 1))
    assert len(engine.options) == 1


async def test_comments_are_passed_on_and_never_counted(engine: SteppedClient) -> None:
    async with serving(engine, sse_keepalive=0.02) as servers, httpx.AsyncClient(base_url=servers.http, timeout=30) as http:
        async with http.stream(**asked("quiet")) as first:
            text = ""
            async for piece in first.aiter_text():
                text += piece
                if text.count(": keep-alive") == 3:
                    engine.allow(ALL)
        assert [number for number, _ in events_of(text)] == list(range(1, EVENTS + 1))
        assert (await resumed(http, "quiet", 2)).text.count(": keep-alive") == 1


async def test_the_body_may_ask_for_it_and_the_request_id_is_the_streams(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.allow(ALL)
    for path, body in (
        ("/v1/completions", BODY),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}], "stream": True}),
    ):
        body = {**body, "stream_options": {"include_usage": True, "resume": True}}
        reply = await http.post(path, json=body, headers=bearer("free"))
        assert reply.headers["x-stream-id"] == reply.headers["x-request-id"]
        again = await resumed(http, reply.headers["x-stream-id"])
        assert events_of(again.text) == events_of(reply.text)
        assert len(events_of(again.text)) == EVENTS + 1 + (path != "/v1/completions")
        for without in ({"resume": False}, {"resume": None}, {}):
            plain = await http.post(path, json={**body, "stream_options": without}, headers=bearer("free"))
            assert ("x-stream-id" in plain.headers, b"id: " in plain.content) == (False, False)
    refused = await http.post("/v1/completions", json={**BODY, "stream_options": {"resume": 1}}, headers=bearer("free"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream_options.resume")


async def test_sdks_read_numbered_events(servers: Serving, http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.allow(ALL)
    headers = {"X-Conversation-Id": "sdk"}
    async with openai.AsyncOpenAI(base_url=f"{servers.http}/v1", api_key="free", max_retries=0) as sdk:
        chunks = await sdk.completions.create(model="echo", prompt=PROMPT, stream=True, extra_headers=headers)
        assert "".join([chunk.choices[0].text async for chunk in chunks]) == PROMPT
        async with sdk.responses.stream(model="echo", input=PROMPT, extra_headers=headers) as response:
            assert (await response.get_final_response()).output_text == PROMPT
        kinds = [json.loads(data)["type"] for _, data in events_of((await resumed(http, "sdk")).text)]
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    async with anthropic.AsyncAnthropic(base_url=servers.http, api_key="free", max_retries=0) as claude:
        question: Any = [{"role": "user", "content": PROMPT}]
        async with claude.messages.stream(model="echo", max_tokens=64, messages=question, extra_headers=headers) as message:
            assert await message.get_final_text() == PROMPT
    numbers = [number for number, _ in events_of((await resumed(http, "sdk")).text)]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_an_event_source_says_where_it_was(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.allow(ALL)
    await http.request(**asked("source"))
    headers = {**bearer("free"), "Last-Event-ID": "9"}
    reply = await http.get("/v1/streams/source?from=2", headers=headers)
    assert events_of(reply.text)[0][0] == 10
    for value in ("", "-1", "x", "1.5"):
        refused = await http.get("/v1/streams/source", headers={**headers, "Last-Event-ID": value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "last-event-id"), value


async def test_an_answer_that_is_no_stream_is_fetched_whole(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.allow(1)
    asking = asyncio.create_task(http.request(**asked("whole", stream=False)))
    async with asyncio.timeout(60):
        while not engine.active:
            await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait([asking])
    fetching = asyncio.create_task(resumed(http, "whole"))
    engine.allow(ALL)
    reply, again = await fetching, await resumed(http, "whole")
    assert reply.json() == again.json()
    assert reply.json()["choices"][0]["text"] == PROMPT
    assert (reply.headers["content-type"], reply.headers["x-stream-id"]) == ("application/json", "whole")
    refused = await resumed(http, "whole", 1)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "from")
    (entry,) = (await http.get("/v1/streams", headers=bearer("free"))).json()["data"]
    assert (entry["status"], entry["events"]) == ("done", None)


async def test_a_later_request_with_the_id_ends_the_earlier_one(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.allow(3)
    async with http.stream(**asked("again")) as first:
        pieces = first.aiter_text()
        text = ""
        while len(events_of(text)) < 3:
            text += await anext(pieces)
        second = asyncio.create_task(http.request(**asked("again", prompt="other")))
        text += "".join([piece async for piece in pieces])
    engine.allow(ALL)
    new = events_of((await second).text)
    assert [number for number, _ in events_of(text)] == [1, 2, 3, None]
    assert json.loads(events_of(text)[-1][1])["error"]["code"] == "conflict"
    assert len(engine.aborted) == 1
    assert (new[0][0], new[-1]) == (1, (len("other") + 2, "[DONE]"))
    assert events_of((await resumed(http, "again")).text) == new
    done = await http.request(**asked("again"))
    assert (await resumed(http, "again")).text.endswith(done.text)


@pytest.mark.parametrize("reads", [False, True])
async def test_a_deleted_stream_ends_and_is_forgotten(http: httpx.AsyncClient, engine: SteppedClient, reads: bool) -> None:
    engine.allow(2)
    async with http.stream(**asked("stop")) as first:
        got = await some(first, 2) if not reads else []
        if reads:
            reply = await http.delete("/v1/streams/stop", headers=bearer("free"))
            got = events_of((await first.aread()).decode())
    if not reads:
        reply = await http.delete("/v1/streams/stop", headers=bearer("free"))
    assert reply.json() == {"id": "stop", "object": "stream", "deleted": True}
    await engine.until_idle()
    assert len(engine.aborted) == 1
    assert got[-1][1] != "[DONE]"
    for answer in (await resumed(http, "stop"), await http.delete("/v1/streams/stop", headers=bearer("free"))):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert (await http.get("/v1/streams", headers=bearer("free"))).json() == {"object": "list", "data": []}


async def test_streams_are_the_tenants_own(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.allow(2)
    async with http.stream(**asked("mine")) as first:
        await some(first, 2)
        for who in ("limited", "admin"):
            for method in ("GET", "DELETE"):
                other = await http.request(method, "/v1/streams/mine", headers=bearer(who))
                nothing = await http.request(method, "/v1/streams/none", headers=bearer(who))
                assert (other.status_code, nothing.status_code) == (404, 404)
                assert other.text.replace("mine", "none") == nothing.text
            assert (await http.get("/v1/streams", headers=bearer(who))).json()["data"] == []
        assert (await http.get("/v1/streams/mine")).status_code == 401
        engine.allow(ALL)
        async with http.stream(**asked("mine", "limited", prompt="other")) as second:
            await second.aread()
    assert len(events_of((await resumed(http, "mine")).text)) == EVENTS, "another tenant's stream of this name is another"
    assert engine.aborted == []


async def test_streams_are_listed(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.allow(ALL)
    await http.request(**asked("done"))
    engine.allowed = asyncio.Semaphore(3)
    async with http.stream(**asked("running")) as first:
        await some(first, 3)
    keyed = {**bearer("free"), "Idempotency-Key": "key"}
    engine.allow(ALL)
    await http.post("/v1/completions", json={**BODY, "stream": False}, headers=keyed)
    entries = (await http.get("/streams", headers=bearer("free"))).json()["data"]
    assert [entry["id"] for entry in entries] == ["done", "running"]
    assert entries[0] == {
        "id": "done",
        "object": "stream",
        "status": "done",
        "events": EVENTS,
        "created_at": entries[0]["created_at"],
    }
    assert abs(entries[0]["created_at"] - entries[1]["created_at"]) <= 60


@pytest.mark.parametrize("grace", [0.0, 0.05])
async def test_it_ends_when_nobody_comes_back_in_time(engine: SteppedClient, grace: float) -> None:
    async with serving(engine, stream_grace=grace) as servers, httpx.AsyncClient(base_url=servers.http, timeout=30) as http:
        engine.allow(2)
        async with http.stream(**asked("late")) as first:
            await some(first, 2)
        await engine.until_idle()
        assert len(engine.aborted) == 1
        assert (await resumed(http, "late")).status_code == 404


async def test_the_tenants_concurrency_holds_while_nobody_reads(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.allow(2)
    async with http.stream(**asked("one", "batch")) as first:
        await some(first, 2)
    assert (await http.request(**asked("two", "batch"))).status_code == 429
    assert (await resumed(http, "two", who="batch")).status_code == 404, "what was refused is not kept"
    engine.allow(ALL)
    assert len(events_of((await resumed(http, "one", who="batch")).text)) == EVENTS
    assert (await http.request(**asked("two", "batch"))).status_code == 200


async def test_what_fails_halfway_is_told_to_who_comes_back(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.failure, engine.fail_after = InternalError("broken"), 3
    engine.allow(2)
    async with http.stream(**asked("failing")) as first:
        await some(first, 2)
    engine.allow(ALL)
    await engine.until_idle()
    events = events_of((await resumed(http, "failing", 2)).text)
    assert [number for number, _ in events] == [3, 4]
    assert json.loads(events[-1][1])["error"]["message"] == "broken"


async def test_one_that_is_too_long_is_not_kept(
    http: httpx.AsyncClient, engine: SteppedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.gateway.recording.MAX_RESULT_BYTES", 1000)
    engine.allow(2)
    async with http.stream(**asked("long")) as first:
        pieces = first.aiter_text()
        text = await anext(pieces)
        engine.allow(len(PROMPT) - 3)
        while len(events_of(text)) < len(PROMPT) - 2:
            text += await anext(pieces)
        during = await resumed(http, "long")
        engine.allow(ALL)
        text += "".join([piece async for piece in pieces])
    assert [number for number, _ in events_of(text)] == list(range(1, EVENTS + 1)), "who reads from the start gets everything"
    for refused in (during, await resumed(http, "long")):
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
        assert "'long' is longer than" in refused.json()["error"]["message"]


async def test_bad_input_is_named(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.allow(ALL)
    for value in ("x" * 256, "é".encode(), "a/b", ""):
        headers: list[Any] = [("x-api-key", "free"), ("x-conversation-id", value)]
        reply = await http.post("/v1/completions", json=BODY, headers=headers)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "X-Conversation-Id"), value
    twice = [("x-api-key", "free"), ("x-conversation-id", "a"), ("x-conversation-id", "b")]
    assert (await http.post("/v1/completions", json=BODY, headers=twice)).status_code == 400
    keyed = {**bearer("free"), "Idempotency-Key": "k"}
    both = await http.post("/v1/completions", json=BODY, headers={**keyed, "X-Conversation-Id": "a"})
    assert (both.status_code, both.json()["error"]["param"]) == (400, "X-Conversation-Id")
    both = await http.post("/v1/completions", json={**BODY, "stream_options": {"resume": True}}, headers=keyed)
    assert (both.status_code, both.json()["error"]["param"]) == (400, "stream_options.resume")
    for body in (b'{"prompt": ' + b"[" * 4000 + b'"resume"' + b"]" * 4000 + b"}", b'{"resume"', b'"resume"\xff', b'["resume"]'):
        reply = await http.post("/v1/completions", content=body, headers={**bearer("free"), "content-type": "application/json"})
        assert reply.status_code == 400, body[:20]
    assert engine.options == []
    await http.request(**asked("good"))
    for value in ("-1", "x", "1.5", str(EVENTS + 1), "9" * 30):
        reply = await http.get(f"/v1/streams/good?from={value}", headers=bearer("free"))
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "from"), value
    for method in ("GET", "DELETE"):
        reply = await http.request(method, f"/v1/streams/{'x' * 256}", headers=bearer("free"))
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream_id")


async def test_who_is_ahead_of_what_runs_waits_and_is_told_at_its_end(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.allow(2)
    async with http.stream(**asked("ahead")) as first:
        await some(first, 2)
        asking = asyncio.create_task(resumed(http, "ahead", 5))
        beyond = asyncio.create_task(resumed(http, "ahead", EVENTS + 1))
        engine.allow(ALL)
        assert [number for number, _ in events_of((await asking).text)] == list(range(6, EVENTS + 1))
        ((number, data),) = events_of((await beyond).text)
        assert (number, json.loads(data)["error"]["param"]) == (None, "from")


async def test_an_idempotency_key_cannot_reach_a_stream(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    engine.allow(ALL)
    await http.request(**asked("k"))
    for key in ("k", "stream\\nk", "streamk"):
        reply = await http.post("/v1/completions", json=BODY, headers={**bearer("free"), "Idempotency-Key": key})
        assert (reply.status_code, "idempotency-replayed" in reply.headers) == (200, False)
    assert len(engine.options) == 4


async def test_requests_that_generate_nothing_end_no_stream(http: httpx.AsyncClient, engine: SteppedClient) -> None:
    """Pages send the header with whatever they ask."""
    engine.allow(2)
    async with http.stream(**asked("page")) as first:
        headers = {**bearer("free"), "X-Conversation-Id": "page"}
        assert (await http.post("/tokenize", json={"prompt": "x"}, headers=headers)).status_code == 200
        engine.allow(ALL)
        assert len(events_of((await first.aread()).decode())) == EVENTS


async def test_what_is_resumed_is_paid_once(servers: Serving, engine: SteppedClient, usage_log: Path) -> None:
    async with httpx.AsyncClient(base_url=servers.http, timeout=30) as http:
        engine.allow(2)
        async with http.stream(**asked("paid")) as first:
            await some(first, 2)
        engine.allow(ALL)
        for _ in range(3):
            await resumed(http, "paid")
    await servers.servers.stop()
    assert delivered(usage(usage_log)) == len(PROMPT)
