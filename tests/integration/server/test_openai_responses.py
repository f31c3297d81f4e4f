"""The openai SDK's `responses` against a real server."""

import json
from typing import Any

import httpx
import openai
import pytest

from jaxserve.errors import InternalError
from tests.support.scripted import ScriptedClient

ASK: dict[str, Any] = {"model": "echo", "input": "hello"}
LOGPROBS: Any = ["message.output_text.logprobs"]


async def test_a_response(sdk: openai.AsyncOpenAI, engine: ScriptedClient) -> None:
    reply = await sdk.responses.create(**ASK, instructions="be brief", metadata={"a": "b"}, temperature=0.5)
    assert (reply.output_text, reply.status, reply.object, reply.model) == ("hello", "completed", "response", "echo")
    assert (reply.instructions, reply.metadata, reply.temperature, reply.top_p) == ("be brief", {"a": "b"}, 0.5, 1.0)
    assert (reply.error, reply.incomplete_details, reply.id[:5]) == (None, None, "resp_")
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) == (5, 5, 10)
    assert reply.usage.input_tokens_details.cached_tokens == 2
    assert reply.usage.output_tokens_details.reasoning_tokens == 0
    assert reply.to_dict()["store"] is False
    assert engine.messages == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert engine.arguments == {"add_generation_prompt": True, "continue_final_message": False}
    assert engine.seen[0].max_tokens is None


async def test_an_earlier_answer_is_input(sdk: openai.AsyncOpenAI, engine: ScriptedClient) -> None:
    first = await sdk.responses.create(**ASK)
    parts: Any = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    given: Any = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "hello"},
        *(item.to_dict() for item in first.output),
        {"type": "message", "role": "user", "content": parts},
    ]
    reply = await sdk.responses.create(model="echo", input=given)
    assert reply.output_text == "a\nb"
    assert [(turn["role"], turn["content"]) for turn in engine.messages] == [
        ("system", "d"),
        ("user", "hello"),
        ("assistant", "hello"),
        ("user", "a\nb"),
    ]


async def test_limits_and_stops(sdk: openai.AsyncOpenAI) -> None:
    limited = await sdk.responses.create(**ASK, max_output_tokens=3)
    assert (limited.output_text, limited.status, limited.output[0].to_dict()["status"]) == ("hel", "incomplete", "incomplete")
    assert limited.incomplete_details is not None
    assert (limited.incomplete_details.reason, limited.max_output_tokens) == ("max_output_tokens", 3)
    stopped = await sdk.responses.create(**ASK, extra_body={"stop": "l"})
    assert (stopped.output_text, stopped.status) == ("he", "completed")


@pytest.mark.parametrize("top", [None, 2])
async def test_logprobs(sdk: openai.AsyncOpenAI, top: int | None) -> None:
    extra: dict[str, Any] = {} if top is None else {"top_logprobs": top}
    reply = await sdk.responses.create(**ASK, include=LOGPROBS, **extra)
    tokens = reply.to_dict()["output"][0]["content"][0]["logprobs"]
    assert [token["token"] for token in tokens] == list("hello")
    assert {len(token["top_logprobs"]) for token in tokens} == {top or 0}
    without = await sdk.responses.create(**ASK)
    assert without.to_dict()["output"][0]["content"][0]["logprobs"] == []


async def test_a_stream(sdk: openai.AsyncOpenAI) -> None:
    events = [event async for event in await sdk.responses.create(**ASK, stream=True, include=LOGPROBS, top_logprobs=1)]
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 5,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == "hello"
    assert [[token.token for token in event.logprobs] for event in deltas] == [["h"], ["e"], ["l"], ["l"], ["o"]]
    first, last, done = events[0], events[-1], events[-4]
    assert first.type == "response.created"
    assert (first.response.status, first.response.output, first.response.usage) == ("in_progress", [], None)
    assert done.type == "response.output_text.done"
    assert (done.text, len(done.logprobs)) == ("hello", 5)
    assert last.type == "response.completed"
    assert (last.response.output_text, last.response.status, last.response.id) == ("hello", "completed", first.response.id)
    assert last.response.usage is not None
    assert last.response.usage.total_tokens == 10


async def test_a_stream_that_runs_out_of_tokens(sdk: openai.AsyncOpenAI) -> None:
    events = [event async for event in await sdk.responses.create(**ASK, stream=True, max_output_tokens=2)]
    assert events[-1].type == "response.incomplete"
    assert (events[-1].response.status, events[-1].response.output_text) == ("incomplete", "he")


async def test_the_sdks_stream_helper(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.responses.stream(**ASK) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == "hello"


@pytest.mark.parametrize("failure", [InternalError("this request failed"), RuntimeError("a secret")])
async def test_a_failure_in_mid_stream_is_an_error_event(
    sdk: openai.AsyncOpenAI, engine: ScriptedClient, failure: Exception
) -> None:
    engine.failure, engine.fail_after = failure, 2
    text = ""
    with pytest.raises(openai.APIError) as info:  # noqa: PT012 - the stream fails while it is read
        async for event in await sdk.responses.create(**ASK, stream=True):
            text += event.delta if event.type == "response.output_text.delta" else ""
    assert (text, info.value.code) == ("he", "internal_error")
    assert "secret" not in str(info.value)


async def test_the_error_event_has_a_number(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    engine.failure, engine.fail_after = InternalError("this request failed"), 1
    *_, failed, last, rest = (await http.post("/v1/responses", json={**ASK, "stream": True})).text.split("\n\n")
    name, data = last.split("\n")
    event = json.loads(data.removeprefix("data: "))
    assert (name, rest) == ("event: error", "")
    assert (event["type"], event["sequence_number"], event["message"]) == ("error", 6, "this request failed")
    assert failed.startswith("event: response.failed")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": "x" * 600}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "file_search_call", "id": "1", "queries": []}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 99}, "top_logprobs"),
        ({"include": LOGPROBS, "top_logprobs": 99}, "top_logprobs"),
        ({"include": ["everything"]}, "include[0]"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"n": 2}, "n"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
)
async def test_refusals_name_the_place(http: httpx.AsyncClient, change: dict[str, Any], param: str) -> None:
    reply = await http.post("/v1/responses", json={**ASK, **change})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_what_asks_for_nothing_is_no_reason_to_refuse(http: httpx.AsyncClient) -> None:
    harmless = {
        "store": False,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "none"},
        "text": {"format": {"type": "text"}},
        "include": ["reasoning.encrypted_content"],
        "service_tier": "auto",
        "unknown": 1,
    }
    reply = await http.post("/v1/responses", json={**ASK, **harmless})
    assert (reply.status_code, reply.json()["service_tier"]) == (200, "default")
