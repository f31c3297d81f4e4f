"""The anthropic SDK against a real server."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest

from jaxserve.errors import InternalError, QueueFullError
from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving

ASK: dict[str, Any] = {"model": "echo", "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
async def claude(servers: Serving) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=servers.http, api_key="none", max_retries=0) as client:
        yield client


async def test_a_message(claude: anthropic.AsyncAnthropic, engine: ScriptedClient) -> None:
    reply = await claude.messages.create(**ASK)
    assert [(block.type, block.text) for block in reply.content if block.type == "text"] == [("text", "hello")]
    assert (reply.role, reply.type, reply.model, reply.stop_reason, reply.stop_sequence) == (
        "assistant",
        "message",
        "echo",
        "end_turn",
        None,
    )
    assert reply.id.startswith("msg_")
    usage = reply.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (3, 2, 5)
    assert engine.arguments == {"add_generation_prompt": True, "continue_final_message": False}
    assert engine.seen[0].max_tokens == 64


async def test_system_and_blocks(claude: anthropic.AsyncAnthropic, engine: ScriptedClient) -> None:
    blocks: Any = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    reply = await claude.messages.create(**{**ASK, "messages": [{"role": "user", "content": blocks}]}, system=blocks[:1])
    assert engine.messages == [{"role": "system", "content": "a"}, {"role": "user", "content": "a\nb"}]
    assert reply.content[0].to_dict()["text"] == "a\nb"


async def test_the_assistants_last_message_goes_on(claude: anthropic.AsyncAnthropic, engine: ScriptedClient) -> None:
    turns = [*ASK["messages"], {"role": "assistant", "content": "hel"}]
    await claude.messages.create(**{**ASK, "messages": turns})
    assert engine.arguments == {"add_generation_prompt": False, "continue_final_message": True}


async def test_stops(claude: anthropic.AsyncAnthropic) -> None:
    stopped = await claude.messages.create(**ASK, stop_sequences=["x", "l"])
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].to_dict()["text"]) == ("stop_sequence", "l", "he")
    limited = await claude.messages.create(**{**ASK, "max_tokens": 2})
    assert (limited.stop_reason, limited.stop_sequence) == ("max_tokens", None)


async def test_sampling_fields_reach_the_engine(claude: anthropic.AsyncAnthropic, engine: ScriptedClient) -> None:
    extra = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 3, "service_class": "batch", "request_id": "mine"}
    reply = await claude.messages.create(**ASK, extra_body={**extra, "timeout": 5.0})
    params, options = engine.seen[0], engine.options[0]
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.9, 5, 3)
    assert (options.service_class, options.timeout, reply.id) == ("batch", 5.0, "msg_mine")


async def test_a_stream(claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(**ASK, stop_sequences=["o"]) as stream:
        kinds = [event.type async for event in stream]
        message = await stream.get_final_message()
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert kinds.count("content_block_delta") == 4
    assert (message.content[0].to_dict()["text"], message.stop_reason, message.stop_sequence) == ("hell", "stop_sequence", "o")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 4)


async def test_events_on_the_wire(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/messages", json={**ASK, "stream": True, "max_tokens": 1})
    names = [line.removeprefix("event: ") for line in reply.text.splitlines() if line.startswith("event: ")]
    assert names == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert '"type":"message_start"' in reply.text


async def test_tokens_are_counted(claude: anthropic.AsyncAnthropic) -> None:
    count = await claude.messages.count_tokens(model="echo", messages=ASK["messages"])
    assert count.input_tokens == 5


async def test_errors_are_the_sdks_own(claude: anthropic.AsyncAnthropic, engine: ScriptedClient) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await claude.messages.create(**{**ASK, "model": "claude"})
    body: Any = missing.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        await claude.messages.create(**ASK, extra_body={"temperature": -1.0})
    with pytest.raises(anthropic.BadRequestError, match="tools is not supported"):
        await claude.messages.create(**ASK, tools=[{"name": "t", "input_schema": {"type": "object"}}])
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences must be"):
        await claude.messages.create(**ASK, stop_sequences=[""])
    engine.failure = QueueFullError("the queue is full", retry_after=2.0)
    with pytest.raises(anthropic.RateLimitError) as full:
        await claude.messages.create(**ASK)
    assert int(full.value.response.headers["retry-after"]) >= 2


@pytest.mark.parametrize("failure", [InternalError("this request failed"), RuntimeError("a secret")])
async def test_a_failure_in_mid_stream_is_an_error_event(
    claude: anthropic.AsyncAnthropic, engine: ScriptedClient, failure: Exception
) -> None:
    engine.failure, engine.fail_after = failure, 2
    text = ""
    with pytest.raises(anthropic.APIStatusError, match="api_error") as info:  # noqa: PT012 - the stream fails while it is read
        async with claude.messages.stream(**ASK) as stream:
            async for piece in stream.text_stream:
                text += piece
    assert text == "he"
    assert "secret" not in str(info.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages must not be empty"),
        ({"messages": [], "system": "x"}, "messages must not be empty"),
        ({"messages": [{"role": "developer", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking"),
        ({"n": 2}, "n is not supported"),
        ({"stop": "x"}, "stop is not supported"),
        ({"service_tier": "flex"}, "service_tier"),
    ],
)
async def test_refusals_have_anthropics_shape(http: httpx.AsyncClient, change: dict[str, Any], words: str) -> None:
    reply = await http.post("/v1/messages", json={**ASK, **change})
    body = reply.json()
    assert (reply.status_code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert words in body["error"]["message"]


async def test_paths_and_methods_under_messages_fail_in_the_same_shape(http: httpx.AsyncClient) -> None:
    for reply, status, kind in (
        (await http.get("/v1/messages"), 405, "invalid_request_error"),
        (await http.post("/v1/messages/nothing"), 404, "not_found_error"),
    ):
        assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind)
