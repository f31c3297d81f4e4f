"""Tools and thinking of chat completions: the openai SDK against a real server whose engine repeats what it is told."""

from __future__ import annotations

import json
from typing import Any, cast

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall
from pydantic import BaseModel

from jaxserve.sampling.response import ResponseParams
from tests.support.scripted import HERMES, ScriptedClient

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TWO = f'{CALL}\n<tool_call>\n{{"name": "clock", "arguments": {{}}}}\n</tool_call>'
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}


@pytest.fixture(autouse=True)
def template(engine: ScriptedClient) -> None:
    engine.response_template = HERMES


def asked(text: str, **fields: Any) -> dict[str, Any]:
    """A request that is answered with this text."""
    return {"model": "echo", "messages": [{"role": "user", "content": text}], "tools": [WEATHER, CLOCK], **fields}


async def both(sdk: openai.AsyncOpenAI, body: dict[str, Any]) -> tuple[Any, Any]:
    """The answer to a request, and what the SDK puts together from a stream of it."""
    whole = await sdk.chat.completions.create(**body)
    async with sdk.chat.completions.stream(**body, stream_options={"include_usage": True}) as stream:
        async for _ in stream:
            pass
        streamed = await stream.get_final_completion()
    assert whole.usage == streamed.usage
    return whole.choices[0], streamed.choices[0]


@pytest.mark.parametrize(
    ("text", "content", "names"),
    [
        (CALL, None, ["weather"]),
        (TWO, None, ["weather", "clock"]),
        (f"Let me look.\n{CALL}", "Let me look.", ["weather"]),
        ("no call at all", "no call at all", []),
        ("<tool_call> of what?", "<tool_call> of what?", []),
        ('<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', None, []),
    ],
)
async def test_calls(sdk: openai.AsyncOpenAI, text: str, content: str | None, names: list[str]) -> None:
    for choice in await both(sdk, asked(text)):
        calls = cast("list[ChatCompletionMessageFunctionToolCall]", choice.message.tool_calls or [])
        assert [call.function.name for call in calls] == names
        assert choice.finish_reason == ("tool_calls" if names else "stop")
        assert len({call.id for call in calls}) == len(names)
        assert all(call.type == "function" and call.id.startswith("call_") for call in calls)
        assert (choice.message.content or None) == (content if names or content else text)
        if names:
            assert json.loads(calls[0].function.arguments) == {"city": "Oslo"}


async def test_a_stream_tells_a_call_as_openai_does(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(**asked(TWO), stream=True)
    deltas = [call async for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
    for index, name in enumerate(("weather", "clock")):
        first, *rest = [delta for delta in deltas if delta.index == index]
        assert first.function is not None
        assert (first.type, first.function.name, first.function.arguments) == ("function", name, "")
        assert all(delta.id is None and delta.type is None for delta in rest)
    assert [delta.index for delta in deltas] == sorted(delta.index for delta in deltas)


async def test_what_is_cut_off_is_no_call(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.chat.completions.create(**asked(CALL, max_tokens=60))
    assert (whole.choices[0].finish_reason, whole.choices[0].message.tool_calls) == ("length", None)
    stream = await sdk.chat.completions.create(**asked(CALL, max_tokens=60), stream=True)
    assert [chunk.choices[0].finish_reason async for chunk in stream][-1] == "length"


async def test_thinking(sdk: openai.AsyncOpenAI, engine: ScriptedClient) -> None:
    text = f"<think>\nWhere is Oslo?\n</think>\n\nLet me look.\n{CALL}"
    for choice in await both(sdk, asked(text)):
        message: Any = choice.message
        assert (message.reasoning, message.reasoning_content) == ("Where is Oslo?",) * 2
        assert (message.content, len(message.tool_calls)) == ("Let me look.", 1)
    usage = (await sdk.chat.completions.create(**asked(text))).usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == len("\nWhere is Oslo?\n</think>")
    hidden = await sdk.chat.completions.create(**asked(text), extra_body={"include_reasoning": False})
    assert "reasoning" not in (hidden.choices[0].message.model_extra or {})
    await sdk.chat.completions.create(**asked("hi"), reasoning_effort="low", extra_body={"thinking_token_budget": 5})
    assert {"reasoning_effort": "low", "enable_thinking": True}.items() <= engine.arguments.items()
    await sdk.chat.completions.create(**asked("hi"), reasoning_effort="none")
    assert engine.arguments["enable_thinking"] is False
    assert "reasoning_effort" not in engine.arguments


async def test_the_form_that_the_engine_is_asked_for(sdk: openai.AsyncOpenAI, engine: ScriptedClient) -> None:
    async def form(**fields: Any) -> Any:
        await sdk.chat.completions.create(**asked(CALL, **fields))
        return engine.seen[-1].structured_outputs

    auto = await form()
    assert isinstance(auto, ResponseParams)
    assert (auto.required, auto.parallel, auto.thinking) == (False, True, "none")
    paths = [tool["path"] for tool in json.loads(auto.tools)]
    assert paths == ["tools[0].function.parameters", "tools[1].function.parameters"]
    required = await form(tool_choice="required", parallel_tool_calls=False)
    assert (required.required, required.parallel) == (True, False)
    named = await form(tool_choice={"type": "function", "function": {"name": "clock"}})
    assert ([tool["name"] for tool in json.loads(named.tools)], named.required) == (["clock"], True)
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}]}
    some = await form(tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert ([tool["name"] for tool in json.loads(some.tools)], some.required) == (["weather"], False)
    assert [tool["function"]["name"] for tool in engine.arguments["tools"]] == ["weather", "clock"]
    assert await form(tool_choice="none") is None
    assert "tools" not in engine.arguments
    schema = {"name": "x", "schema": {"type": "object"}}
    assert (await form(response_format={"type": "json_schema", "json_schema": schema})).content.json == '{"type":"object"}'
    assert engine.options[-1].shows_markup


async def test_results_go_back_to_the_template(sdk: openai.AsyncOpenAI, engine: ScriptedClient) -> None:
    first = (await sdk.chat.completions.create(**asked(TWO))).choices[0].message
    calls = cast("list[ChatCompletionMessageFunctionToolCall]", first.tool_calls)
    results = [{"role": "tool", "tool_call_id": call.id, "content": call.function.name.upper()} for call in calls]
    messages: Any = [*asked(TWO)["messages"], first.model_dump(exclude_none=True), *results]
    reply = await sdk.chat.completions.create(model="echo", messages=messages, tools=[WEATHER, CLOCK])  # type: ignore[list-item]
    assert reply.choices[0].message.content == "CLOCK"
    _, assistant, *told = engine.messages
    assert [call["function"] for call in assistant["tool_calls"]] == [
        {"name": "weather", "arguments": {"city": "Oslo"}},
        {"name": "clock", "arguments": {}},
    ]
    assert assistant["content"] == ""
    assert [(one["role"], one["name"], one["content"]) for one in told] == [
        ("tool", "weather", "WEATHER"),
        ("tool", "clock", "CLOCK"),
    ]


class Weather(BaseModel):
    """What the SDK makes of arguments."""

    city: str


async def test_the_sdk_parses(sdk: openai.AsyncOpenAI) -> None:
    tool = openai.pydantic_function_tool(Weather, name="weather")
    parsed = await sdk.chat.completions.parse(**{**asked(CALL), "tools": [tool]})
    calls = parsed.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.parsed_arguments == Weather(city="Oslo")
    answer = await sdk.chat.completions.parse(
        model="echo", messages=[{"role": "user", "content": '{"city": "Rome"}'}], response_format=Weather
    )
    assert answer.choices[0].message.parsed == Weather(city="Rome")


def result_of(call_id: str | None) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    result = {"role": "tool", "content": "x", **({} if call_id is None else {"tool_call_id": call_id})}
    return {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call]}, result]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "has a space"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "function", "function": {"name": "none"}}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        (result_of("b"), "messages[2].tool_call_id"),
        (result_of(None), "messages[2].tool_call_id"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "a"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "[1]"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"thinking_token_budget": 1, "thinking": {"type": "enabled", "budget_tokens": 3}}, "thinking.budget_tokens"),
    ],
)
async def test_bad_input_names_its_field(http: httpx.AsyncClient, engine: ScriptedClient, fields: Any, param: str) -> None:
    reply = await http.post("/v1/chat/completions", json={**asked("hi"), **fields})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert not engine.active


@pytest.mark.parametrize("field", ["tools", "reasoning_effort", "enable_thinking", "thinking_token_budget"])
async def test_a_model_that_cannot(http: httpx.AsyncClient, engine: ScriptedClient, field: str) -> None:
    engine.response_template = None
    values: dict[str, Any] = {"tools": [CLOCK], "reasoning_effort": "high", "enable_thinking": True, "thinking_token_budget": 9}
    reply = await http.post("/v1/chat/completions", json={**asked("hi"), "tools": None, field: values[field]})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, field)
    assert error["message"].startswith(f"{field} is not supported with this model")
