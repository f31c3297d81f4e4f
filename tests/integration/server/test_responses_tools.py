"""Tools and reasoning of /v1/responses: the openai SDK against a real server whose engine says back what it was told."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from jaxserve.chat_parsing import find_template
from jaxserve.sampling.response import ResponseParams
from server.context import NOBODY
from server.http.bodies import answer_body
from tests.support.scripted import ScriptedClient

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
TOOLS: Any = [
    {"type": "function", "name": "weather", "description": "of a city", "parameters": CITY, "strict": True},
    {"type": "function", "name": "clock", "parameters": None, "strict": None},
]
PARIS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CLOCK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
OPENED = "hi<|im_start|>assistant\n"  # as a prompt that opens the assistant's turn
ASK: dict[str, Any] = {"model": "echo", "tools": TOOLS}


@pytest.fixture
def engine(engine: ScriptedClient) -> ScriptedClient:
    engine.response_template = find_template("<tool_call> <think> </think>")
    return engine


def params(engine: ScriptedClient) -> ResponseParams:
    found = engine.seen[-1].structured_outputs
    assert isinstance(found, ResponseParams)
    return found


async def test_an_answer_of_thoughts_text_and_calls_and_the_way_back(sdk: openai.AsyncOpenAI, engine: ScriptedClient) -> None:
    reply = await sdk.responses.create(**ASK, input=f"<think>hm</think>Wait.{PARIS}{CLOCK}")
    reasoning, said, weather, clock = reply.output
    assert reasoning.type == "reasoning"
    assert (reasoning.status, reasoning.summary, reasoning.content and reasoning.content[0].text) == ("completed", [], "hm")
    assert said.type == "message"
    assert weather.type == clock.type == "function_call"
    assert (weather.name, json.loads(weather.arguments), weather.status) == ("weather", {"city": "Paris"}, "completed")
    assert (clock.name, clock.arguments) == ("clock", "{}")
    assert weather.call_id.startswith("call_")
    assert weather.call_id != clock.call_id
    assert [item.id[:3] for item in (reasoning, weather)] == ["rs_", "fc_"]  # type: ignore[index]
    assert (reply.output_text, reply.status) == ("Wait.", "completed")
    assert reply.usage is not None
    assert 0 < reply.usage.output_tokens_details.reasoning_tokens < reply.usage.output_tokens
    assert reply.to_dict()["tools"] == [TOOLS[0], {**TOOLS[1], "description": None}]
    assert (reply.tool_choice, reply.parallel_tool_calls) == ("auto", True)
    assert engine.arguments["tools"][0] == {"type": "function", "function": {k: v for k, v in TOOLS[0].items() if k != "type"}}
    given: Any = [
        {"role": "user", "content": "weather?"},
        *(item.to_dict() for item in reply.output),
        {"type": "function_call_output", "call_id": weather.call_id, "output": [{"type": "input_text", "text": "sunny"}]},
        {"type": "function_call_output", "call_id": clock.call_id, "output": "noon"},
    ]
    second = await sdk.responses.create(**ASK, input=given, instructions="be brief")
    assert second.output_text == "noon"
    system, user, assistant, first, last = engine.messages
    assert (system["content"], user["content"], assistant["content"], assistant["reasoning"]) == (
        "be brief",
        "weather?",
        "Wait.",
        "hm",
    )
    assert [made["function"] for made in assistant["tool_calls"]] == [
        {"name": "weather", "arguments": {"city": "Paris"}},
        {"name": "clock", "arguments": {}},
    ]
    assert (first["content"], first["tool_call_id"], first["name"]) == ("sunny", weather.call_id, "weather")
    assert (last["content"], last["tool_call_id"], last["name"]) == ("noon", clock.call_id, "clock")


async def test_only_calls_and_nothing(sdk: openai.AsyncOpenAI) -> None:
    calls = await sdk.responses.create(**ASK, input=CLOCK)
    assert [item.type for item in calls.output] == ["function_call"]
    nothing = await sdk.responses.create(**ASK, input="<think></think>")
    assert [(item.type, item.to_dict()["status"]) for item in nothing.output] == [("message", "completed")]
    without = await sdk.responses.create(model="echo", input=CLOCK)
    assert without.output_text == CLOCK


async def test_a_stream(sdk: openai.AsyncOpenAI) -> None:
    given = f"<think>h</think>A{CLOCK}"
    events = [event async for event in await sdk.responses.create(**ASK, input=given, stream=True)]
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    places = [event.to_dict()["output_index"] for event in events[2:-1]]
    assert places == [0] * 6 + [1] * 6 + [2] * 5
    added, done, last = events[14], events[18], events[-1]
    assert added.type == "response.output_item.added"
    assert done.type == "response.output_item.done"
    assert last.type == "response.completed"
    assert added.item.to_dict() == {**done.item.to_dict(), "status": "in_progress", "arguments": ""}
    assert [item.to_dict() for item in last.response.output] == [
        event.item.to_dict() for event in events if event.type == "response.output_item.done"
    ]


async def test_the_sdks_stream_helper(sdk: openai.AsyncOpenAI) -> None:
    snapshots = []
    async with sdk.responses.stream(**ASK, input=f"<think>h</think>A{PARIS}") as stream:
        async for event in stream:
            if event.type == "response.function_call_arguments.delta":
                snapshots.append(event.snapshot)
        final = await stream.get_final_response()
    assert snapshots[-1] == '{"city": "Paris"}'
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    called = final.output[2]
    assert called.type == "function_call"
    assert called.parsed_arguments == {"city": "Paris"}  # the tool is strict


class Weather(BaseModel):
    """Weather of a city."""

    city: str


class Sum(BaseModel):
    """A sum."""

    total: int


async def test_parsed_calls_and_texts(sdk: openai.AsyncOpenAI, engine: ScriptedClient) -> None:
    tool: Any = openai.pydantic_function_tool(Weather, name="weather")
    reply = await sdk.responses.parse(model="echo", tools=[tool], input=PARIS, text_format=Sum)
    (called,) = reply.output
    assert called.type == "function_call"
    assert called.parsed_arguments == Weather(city="Paris")
    form = params(engine)
    assert (form.content is not None, form.required, json.loads(form.tools)[0]["strict"]) == (True, False, True)
    answered = await sdk.responses.parse(model="echo", tools=[tool], input='<think>?</think>{"total": 3}', text_format=Sum)
    assert answered.output_parsed == Sum(total=3)


@pytest.mark.parametrize(
    ("asked", "names", "required", "parallel"),
    [
        ({}, ["weather", "clock"], False, True),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, ["weather", "clock"], False, False),
        ({"tool_choice": "required"}, ["weather", "clock"], True, True),
        ({"tool_choice": {"type": "function", "name": "clock"}}, ["clock"], True, False),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]}},
            ["weather"],
            False,
            True,
        ),
    ],
)
async def test_what_may_be_called(
    sdk: openai.AsyncOpenAI, engine: ScriptedClient, asked: dict[str, Any], names: list[str], required: bool, parallel: bool
) -> None:
    reply = await sdk.responses.create(**ASK, **asked, input="hi")
    form, tools = params(engine), json.loads(params(engine).tools)
    assert ([tool["name"] for tool in tools], form.required, form.parallel) == (names, required, parallel)
    paths = {"weather": "tools[0].parameters", "clock": "tools[1].parameters"}
    assert [tool["path"] for tool in tools] == [paths[name] for name in names]
    told = reply.to_dict()
    assert (told["tool_choice"], told["parallel_tool_calls"]) == (
        asked.get("tool_choice", "auto"),
        asked.get("parallel_tool_calls", True),
    )


async def test_no_calls_and_a_form_of_the_answer(sdk: openai.AsyncOpenAI, engine: ScriptedClient) -> None:
    reply = await sdk.responses.create(**ASK, tool_choice="none", input=CLOCK)
    assert (reply.output_text, engine.seen[-1].structured_outputs) == (CLOCK, None)
    assert "tools" not in engine.arguments


@pytest.mark.parametrize(
    "asked",
    [
        {"reasoning": {"effort": "low", "max_tokens": 7}},
        {"reasoning": {"effort": "low"}, "thinking_token_budget": 7, "reasoning_effort": "high"},
        {"thinking": {"type": "enabled", "budget_tokens": 7}, "reasoning_effort": "low"},
    ],
)
async def test_how_much_to_think(http: httpx.AsyncClient, engine: ScriptedClient, asked: dict[str, Any]) -> None:
    reply = await http.post("/v1/responses", json={"input": OPENED, **asked})
    assert reply.status_code == 200, reply.text
    assert (params(engine).thinking, params(engine).max_thinking_tokens) == ("maybe", 7)
    assert reply.json()["reasoning"] == {"effort": "low", "summary": None}
    await http.post("/v1/responses", json={"input": "hi", **asked})
    assert (engine.arguments["reasoning_effort"], engine.arguments["enable_thinking"]) == ("low", True)


async def test_no_thinking(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    reply = await http.post("/v1/responses", json={"input": OPENED, "reasoning": {"effort": "none"}})
    assert (reply.json()["reasoning"]["effort"], params(engine).max_thinking_tokens) == ("none", 0)
    hidden = await http.post(
        "/v1/responses",
        json={"input": "<think>secret</think>A", "include_reasoning": False, "enable_thinking": False, "top_logprobs": 1},
    )
    assert engine.arguments["enable_thinking"] is False
    (item,) = hidden.json()["output"]
    assert [one["token"] for one in item["content"][0]["logprobs"]] == [item["content"][0]["text"]] == ["A"]


@pytest.mark.parametrize("name", ["summary", "generate_summary"])
async def test_a_summary_is_warned_of(http: httpx.AsyncClient, name: str) -> None:
    asked = {"input": "hi", "reasoning": {"effort": "low", name: "auto"}, "include": ["reasoning.encrypted_content"]}
    reply = await http.post("/v1/responses", json=asked)
    assert reply.status_code == 200
    assert reply.headers["x-jaxserve-warning"].endswith(f": reasoning.{name}")
    assert reply.json()["reasoning"] == {"effort": "low", "summary": None}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("given", "limit", "kept"),
    [
        (f"A{PARIS}", 40, ["message"]),
        (PARIS, 60, ["message"]),
        (f"{CLOCK}{PARIS}", 100, ["function_call"]),
        ("<think>hm", 8, ["reasoning"]),
    ],
)
async def test_what_was_cut_off(sdk: openai.AsyncOpenAI, stream: bool, given: str, limit: int, kept: list[str]) -> None:
    if stream:
        events = [event async for event in await sdk.responses.create(**ASK, input=given, max_output_tokens=limit, stream=True)]
        assert events[-1].type == "response.incomplete"
        reply = events[-1].response
        ended = [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
        assert [item for item in ended if item["type"] != "function_call" or item["status"] == "completed"] == [
            item.to_dict() for item in reply.output
        ]
        assert ("incomplete" in [item["status"] for item in ended]) is (given != f"A{PARIS}" or len(ended) > 1)
        done = [event for event in events if event.type == "response.function_call_arguments.done"]
        assert len(done) == kept.count("function_call")
    else:
        reply = await sdk.responses.create(**ASK, input=given, max_output_tokens=limit)
    assert ([item.type for item in reply.output], reply.status) == (kept, "incomplete")


async def test_a_stream_that_fails_says_so_in_the_response_too(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    engine.failure, engine.fail_after = RuntimeError("a secret"), 3
    text = (await http.post("/v1/responses", json={"input": "hello", "stream": True})).text
    *_, failed, error = [json.loads(frame.split("\ndata: ")[1]) for frame in text.strip().split("\n\n")]
    assert (failed["type"], error["type"]) == ("response.failed", "error")
    assert (failed["response"]["status"], failed["response"]["error"]["code"]) == ("failed", "server_error")
    assert error["sequence_number"] == failed["sequence_number"] + 1
    assert "secret" not in text


OTHERS: list[dict[str, Any]] = [
    {"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "function", "name": "g", "parameters": {}}]},
    {"type": "web_search_2025_08_26", "external_web_access": False},
    {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
    {"type": "of tomorrow\n"},
]


async def test_tools_that_are_no_functions_are_accepted_and_not_offered(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    asked: dict[str, Any] = {"input": "hi", "tools": [OTHERS[0], FUNCTION, *OTHERS[1:]]}
    reply = await http.post("/v1/responses", json=asked)
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-jaxserve-warning"].endswith(": tools.namespace, tools.web_search, tools.custom, tools.other")
    assert [tool["name"] for tool in json.loads(params(engine).tools)] == ["f"]
    assert [tool["function"]["name"] for tool in engine.arguments["tools"]] == ["f"]
    assert [tool["type"] for tool in reply.json()["tools"]] == [tool["type"] for tool in asked["tools"]]
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}, {"type": "function", "name": "f"}]}
    reply = await http.post("/v1/responses", json={**asked, "tool_choice": allowed})
    assert reply.status_code == 200, reply.text
    assert [tool["name"] for tool in json.loads(params(engine).tools)] == ["f"]


FUNCTION: dict[str, Any] = {"type": "function", "name": "f", "parameters": {}}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "web_search"}, {**FUNCTION, "name": "a b"}]}, "tools[1].name"),
        ({"tools": [FUNCTION, {"type": 3}]}, "tools[1].type"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [FUNCTION, {"type": "custom", "name": "g"}], "tool_choice": {"type": "custom", "name": "g"}}, "tool_choice"),
        ({"tools": [FUNCTION, {"type": "custom", "name": "g"}], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name"),
        ({"tools": [{**FUNCTION, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
        ({"tools": [{**FUNCTION, "parameters": 3}]}, "tools[0].parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": 3}, "tool_choice"),
        ({"tools": [FUNCTION], "max_tool_calls": 3}, "max_tool_calls"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort"),
        ({"reasoning": {"max_tokens": -1}}, "reasoning.max_tokens"),
        ({"reasoning": {"max_tokens": 1}, "thinking_budget": 1}, "thinking_budget"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
        ({"thinking_token_budget": 2**40}, "thinking_token_budget"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"type": [], "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image"}]}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "summary": [], "content": "x"}]}, "input[0].content"),
    ],
)
async def test_refusals_name_the_place(http: httpx.AsyncClient, change: dict[str, Any], param: str) -> None:
    reply = await http.post("/v1/responses", json={"input": "hello", **change})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert reply.json()["error"]["message"].startswith(param)


@pytest.mark.parametrize(
    ("change", "param"),
    [({"tools": [FUNCTION]}, "tools"), ({"reasoning": {"effort": "low"}}, "reasoning.effort")],
)
async def test_a_model_that_does_not_show_how(
    http: httpx.AsyncClient, engine: ScriptedClient, change: dict[str, Any], param: str
) -> None:
    engine.response_template = None
    reply = await http.post("/v1/responses", json={"input": "hello", **change})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_bodies_of_batches(engine: ScriptedClient) -> None:
    body = {"input": f"<think>h</think>{CLOCK}", "tools": TOOLS}
    reply: Any = await answer_body(engine, "/v1/responses", body, tenant="", context=NOBODY)
    assert [item["type"] for item in reply["output"]] == ["reasoning", "function_call"]
