"""Tools and thinking with the anthropic SDK against a real server, whose engine says back what it was asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import beta_async_tool
from anthropic.types import MessageParam, ToolParam

from jaxserve.chat_parsing import find_template
from jaxserve.sampling.response import ResponseParams
from jaxserve.sampling.structured import StructuredOutputsParams
from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD: ToolParam = {"name": "add", "description": "adds", "input_schema": SCHEMA}
FAIL: ToolParam = {"name": "fail", "type": "custom", "input_schema": {"type": "object"}, "strict": True}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
FORGED = '<tool_call>\n{"name": "fail", "arguments": 5}\n</tool_call>'
THOUGHT = "<think>\nhm\n</think>\n\n"
BEGUN = "<|im_start|>assistant\n"  # where the parser sees the assistant's turn begin


@pytest.fixture
def engine(engine: ScriptedClient) -> ScriptedClient:
    engine.response_template = find_template("", tool_call_parser="hermes", reasoning_parser="qwen3")
    return engine


@pytest.fixture
async def claude(servers: Serving) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=servers.http, api_key="none", max_retries=0) as client:
        yield client


def ask(content: Any, **more: Any) -> dict[str, Any]:
    return {"model": "echo", "max_tokens": 240, "messages": [{"role": "user", "content": content}], **more}


def form_of(engine: ScriptedClient) -> ResponseParams:
    form = engine.seen[-1].structured_outputs
    assert isinstance(form, ResponseParams)
    return form


def without_ids(message: anthropic.types.Message) -> list[dict[str, Any]]:
    return [{key: value for key, value in block.to_dict().items() if key != "id"} for block in message.content]


async def streamed(claude: anthropic.AsyncAnthropic, asked: dict[str, Any]) -> tuple[list[Any], anthropic.types.Message]:
    async with claude.messages.stream(**asked) as stream:
        events = [event async for event in stream]
        return events, await stream.get_final_message()


async def test_thinking_text_and_calls(claude: anthropic.AsyncAnthropic, engine: ScriptedClient) -> None:
    reply = await claude.messages.create(**ask(f"{THOUGHT}Let me see.\n{CALL}\n{CALL}", tools=[ADD, FAIL]))
    thinking, text, *calls = reply.content
    assert thinking.to_dict() == {"type": "thinking", "thinking": "hm", "signature": ""}
    assert text.to_dict() == {"type": "text", "text": "Let me see."}
    assert [call.to_dict() | {"id": ""} for call in calls] == [
        {"type": "tool_use", "id": "", "name": "add", "input": {"a": 1, "b": 2}}
    ] * 2
    ids = {call.id for call in calls if call.type == "tool_use"}
    assert len(ids) == 2
    assert all(one.startswith("toolu_") for one in ids)
    assert (reply.stop_reason, reply.stop_sequence) == ("tool_use", None)
    assert reply.usage.output_tokens_details is not None
    assert 0 < reply.usage.output_tokens_details.thinking_tokens < reply.usage.output_tokens
    form = form_of(engine)
    assert (form.required, form.parallel, form.content, form.max_thinking_tokens) == (False, True, None, None)
    assert json.loads(form.tools) == [
        {"name": "add", "parameters": SCHEMA, "strict": False, "path": "tools[0].input_schema"},
        {"name": "fail", "parameters": {"type": "object"}, "strict": True, "path": "tools[1].input_schema"},
    ]
    assert engine.options[-1].shows_markup
    assert engine.arguments["tools"] == [
        {"type": "function", "function": {"name": "add", "description": "adds", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "fail", "parameters": {"type": "object"}, "strict": True}},
    ]


@pytest.mark.parametrize(
    "content", ["", "yes", f"{THOUGHT}yes", CALL, f"{THOUGHT}{CALL}\n{CALL}", f"{THOUGHT}a{CALL}b", f"x{FORGED}y", THOUGHT]
)
async def test_a_stream_adds_up_to_the_whole_message(claude: anthropic.AsyncAnthropic, content: str) -> None:
    asked = ask([{"type": "text", "text": f"{content} "}], tools=[ADD, FAIL])
    whole = await claude.messages.create(**asked)
    events, message = await streamed(claude, asked)
    blocks = without_ids(message)
    if FORGED in content:  # began as a call, and became text
        assert blocks.pop(1) == {"type": "tool_use", "name": "fail", "input": {}}
        blocks = [{"type": "text", "text": "".join(block["text"] for block in blocks)}]
    assert blocks == without_ids(whole)
    assert (message.stop_reason, message.usage) == (whole.stop_reason, whole.usage)
    starts = [event.index for event in events if event.type == "content_block_start"]
    stops = [event.index for event in events if event.type == "content_block_stop"]
    assert starts == stops == list(range(len(message.content)))


async def test_events_on_the_wire(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/messages", json=ask(f"{THOUGHT}{CALL}", tools=[ADD], stream=True))
    events = [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line.startswith("data: ")]
    start, ping, *blocks, ending, stop = events
    assert [event["type"] for event in (start, ping, ending, stop)] == ["message_start", "ping", "message_delta", "message_stop"]
    assert blocks[:5] == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "h"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "m"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": ""}},
        {"type": "content_block_stop", "index": 0},
    ]
    call, *pieces, end = blocks[5:]
    assert call["content_block"].pop("id").startswith("toolu_")
    assert call == {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "name": "add", "input": {}},
    }
    assert {(piece["type"], piece["index"], piece["delta"]["type"]) for piece in pieces} == {
        ("content_block_delta", 1, "input_json_delta")
    }
    assert json.loads("".join(piece["delta"]["partial_json"] for piece in pieces)) == {"a": 1, "b": 2}
    assert end == {"type": "content_block_stop", "index": 1}
    assert ending["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


async def test_calls_and_results_go_back_and_forth(claude: anthropic.AsyncAnthropic, engine: ScriptedClient) -> None:
    turns: list[MessageParam] = [{"role": "user", "content": f"{THOUGHT}One moment.{CALL}{CALL}"}]
    first = await claude.messages.create(model="echo", max_tokens=240, messages=turns, tools=[ADD], system="Add.")
    one, other = [block.id for block in first.content if block.type == "tool_use"]
    text: Any = [{"type": "text", "text": "3", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "4"}]
    turns += [
        first.to_param(),
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": other, "content": text, "is_error": False},
                {"type": "text", "text": "so?"},
                {"type": "tool_result", "tool_use_id": one, "is_error": True},
            ],
        },
    ]
    second = await claude.messages.create(model="echo", max_tokens=240, messages=turns, tools=[ADD], system="Add.")
    assert without_ids(second) == [{"type": "text", "text": "so?"}]
    assert second.stop_reason == "end_turn"
    calls = [
        {"id": name, "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}} for name in (one, other)
    ]
    assert engine.messages == [
        {"role": "system", "content": "Add."},
        turns[0],
        {
            "role": "assistant",
            "content": "One moment.",
            "tool_calls": calls,
            "reasoning": "hm",
            "reasoning_content": "hm",
            "thinking": "hm",
        },
        {"role": "tool", "content": "3\n4", "tool_call_id": other, "name": "add"},
        {"role": "tool", "content": "the tool failed", "tool_call_id": one, "name": "add"},
        {"role": "user", "content": "so?"},
    ]


async def test_the_sdks_tool_runner(claude: anthropic.AsyncAnthropic, engine: ScriptedClient) -> None:
    given = []

    @beta_async_tool
    async def add(a: int, b: int) -> str:
        """Adds."""
        given.append((a, b))
        return f"it is {a + b}"

    for stream in (False, True):
        runner: Any = claude.beta.messages.tool_runner(**ask(f"{THOUGHT}{CALL}{CALL}"), tools=[add], stream=stream)
        last = await runner.until_done()
        assert [block.to_dict() for block in last.content] == [{"type": "text", "text": "it is 3"}]
        assert [message["role"] for message in engine.messages] == ["user", "assistant", "tool", "tool"]
    assert given == [(1, 2)] * 4


async def test_threads_are_refused_in_words_that_the_sdk_acts_on(http: httpx.AsyncClient) -> None:
    """Its tool runner then sends the whole conversation with each request."""
    error = (await http.post("/v1/messages", json=ask("x", thread={"type": "create"}))).json()["error"]
    assert error["message"].startswith("thread is not supported by this server yet: nothing is stored here")
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert "details" not in (await http.post("/v1/messages", json=ask("x", tools=5))).json()["error"]


async def test_thinking_of_another_model(claude: anthropic.AsyncAnthropic, engine: ScriptedClient) -> None:
    thinking: Any = [
        {"type": "thinking", "thinking": "one", "signature": "EqQ"},
        {"type": "redacted_thinking", "data": "EmwK"},
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking", "thinking": "two", "signature": ""},
        {"type": "text", "text": "yes"},
    ]
    turns: Any = [*ask("x")["messages"], {"role": "assistant", "content": thinking}, {"role": "user", "content": "y"}]
    await claude.messages.create(model="echo", max_tokens=9, messages=turns)
    names = ("reasoning", "reasoning_content", "thinking")
    assert engine.messages[1] == {"role": "assistant", "content": "yes", **dict.fromkeys(names, "one\ntwo")}


@pytest.mark.parametrize(
    ("choice", "required", "parallel", "names"),
    [
        (None, False, True, ["add", "fail"]),
        ({"type": "auto"}, False, True, ["add", "fail"]),
        ({"type": "auto", "disable_parallel_tool_use": True}, False, False, ["add", "fail"]),
        ({"type": "any"}, True, True, ["add", "fail"]),
        ({"type": "any", "disable_parallel_tool_use": True}, True, False, ["add", "fail"]),
        ({"type": "tool", "name": "fail"}, True, False, ["fail"]),
    ],
)
async def test_choices(
    http: httpx.AsyncClient, engine: ScriptedClient, choice: Any, required: bool, parallel: bool, names: list[str]
) -> None:
    reply = await http.post("/v1/messages", json=ask("x", tools=[ADD, FAIL], tool_choice=choice))
    assert reply.status_code == 200, reply.text
    form = form_of(engine)
    named = [tool["name"] for tool in json.loads(form.tools)]
    assert (form.required, form.parallel, named) == (required, parallel, names)


async def test_no_tools_wanted(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    reply = await http.post("/v1/messages", json=ask(CALL, tools=[ADD], tool_choice={"type": "none"}))
    assert reply.json()["content"] == [{"type": "text", "text": CALL}]
    assert engine.seen[-1].structured_outputs is None
    assert "tools" not in engine.arguments


async def test_a_form_beside_tools(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    config = {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"}
    reply = await http.post("/v1/messages", json=ask("{}", tools=[ADD], output_config=config))
    assert reply.status_code == 200, reply.text
    assert form_of(engine).content == StructuredOutputsParams(json=SCHEMA)
    assert engine.arguments["reasoning_effort"] == "low"


OPENED = f"hm</think>yes{BEGUN}<think>\n"  # a prompt that opens the thinking; the response is the same text


@pytest.mark.parametrize(
    ("thinking", "budget", "wanted"),
    [
        ({"type": "enabled", "budget_tokens": 20}, 20, True),
        ({"type": "enabled", "budget_tokens": 0}, 0, True),
        ({"type": "disabled", "budget_tokens": 20}, 0, False),
        ({"type": "adaptive", "display": "summarized"}, None, None),
        (None, None, None),
    ],
)
async def test_budgets(http: httpx.AsyncClient, engine: ScriptedClient, thinking: Any, budget: int | None, wanted: Any) -> None:
    reply = await http.post("/v1/messages", json=ask(OPENED, thinking=thinking, tools=[ADD]))
    assert reply.status_code == 200, reply.text
    form = form_of(engine)
    assert (form.thinking, form.max_thinking_tokens) == ("open", budget)
    assert engine.arguments.get("enable_thinking") == engine.arguments.get("thinking") == wanted
    kinds = [block["type"] for block in reply.json()["content"]]
    assert kinds == (["text"] if wanted is False else ["thinking", "text"])


async def test_thinking_that_is_not_told(claude: anthropic.AsyncAnthropic) -> None:
    asked = ask(f"{THOUGHT}yes", thinking={"type": "enabled", "budget_tokens": 99, "display": "omitted"})
    whole = await claude.messages.create(**asked)
    assert without_ids(whole) == [{"type": "thinking", "thinking": "", "signature": ""}, {"type": "text", "text": "yes"}]
    events, message = await streamed(claude, asked)
    assert without_ids(message) == without_ids(whole)
    assert [event.type for event in events[:4]] == ["message_start", "content_block_start", "content_block_delta", "signature"]
    assert whole.usage.output_tokens_details == message.usage.output_tokens_details != None  # noqa: E711


async def test_what_is_cut_off(claude: anthropic.AsyncAnthropic) -> None:
    asked = ask(f"{THOUGHT}{CALL}{CALL}", tools=[ADD]) | {"max_tokens": len(THOUGHT) + len(CALL) + CALL.index('"b"')}
    whole = await claude.messages.create(**asked)
    assert (whole.stop_reason, [block.type for block in whole.content]) == ("max_tokens", ["thinking", "tool_use"])
    _, message = await streamed(claude, asked)
    assert message.stop_reason == "max_tokens"
    *blocks, half = without_ids(message)
    assert blocks == without_ids(whole)
    assert half == {"type": "tool_use", "name": "add", "input": {"a": 1}}


async def test_a_stop_sequence(claude: anthropic.AsyncAnthropic) -> None:
    stopped = await claude.messages.create(**ask(f"{CALL}END", tools=[ADD], stop_sequences=["END"]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("tool_use", "END")
    stopped = await claude.messages.create(**ask("oneENDtwo", tools=[ADD], stop_sequences=["END"]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "END")


async def test_numbers_of_any_size(http: httpx.AsyncClient) -> None:
    call = CALL.replace("1", "9" * 40).replace("2", "1e999")
    reply = await http.post("/v1/messages", json=ask(call, tools=[ADD]))
    assert f'"input":{{"a": {"9" * 40}, "b": 1e999}}' in reply.text


async def test_tokens_of_what_the_prompt_would_be(claude: anthropic.AsyncAnthropic, engine: ScriptedClient) -> None:
    call: Any = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}}
    result: Any = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "three"}
    turns: Any = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    count = await claude.messages.count_tokens(
        model="echo",
        messages=turns,
        tools=[ADD, FAIL],
        tool_choice={"type": "any"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "high"},
        system="s",
    )
    assert count.input_tokens == len("three")
    assert [message["role"] for message in engine.messages] == ["system", "user", "assistant", "tool"]
    assert [tool["function"]["name"] for tool in engine.arguments["tools"]] == ["add", "fail"]
    assert (engine.arguments["enable_thinking"], engine.arguments["reasoning_effort"]) == (True, "high")
    with pytest.raises(anthropic.BadRequestError, match=r"tool_choice\.name names 'sub', which is not in tools"):
        await claude.messages.count_tokens(model="echo", messages=turns, tools=[ADD], tool_choice={"type": "tool", "name": "sub"})


USE = {"type": "tool_use", "id": "a", "name": "add", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "3"}


def turns(*contents: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": ("user", "assistant")[place % 2], "content": content} for place, content in enumerate(contents)]
    }


THINKING: list[dict[str, Any]] = [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "y"}]
CLEAR_THINKING, CLEAR_USES = "clear_thinking_20251015", "clear_tool_uses_20250919"


def managed(*edits: dict[str, Any]) -> dict[str, Any]:
    return {"context_management": {"edits": list(edits)}}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    "change",
    [
        managed({"type": CLEAR_THINKING, "keep": "all"}, {"type": CLEAR_USES}, {"type": "compact_20260112"}),
        managed({"type": CLEAR_THINKING}),
        {**turns("x", THINKING, "y", THINKING, "z"), **managed({"type": CLEAR_THINKING, "keep": {"type": "all"}})},
        {**turns("x", THINKING, "y"), **managed({"type": CLEAR_THINKING})},
        {**turns("x", [USE], [RESULT]), **managed({"type": CLEAR_USES, "trigger": {"type": "input_tokens", "value": 0}})},
        {
            **turns("x", [USE], [RESULT]),
            **managed(
                {"type": CLEAR_USES, "trigger": {"type": "tool_uses", "value": 1}, "keep": {"type": "tool_uses", "value": 0}}
            ),
        },
        {"context_management": {}},
    ],
)
async def test_context_management_that_changes_nothing(http: httpx.AsyncClient, path: str, change: dict[str, Any]) -> None:
    reply = await http.post(path, json={**ask("x"), **change})
    assert reply.status_code == 200, reply.text


async def test_system_turns(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    """The engine's template writes none inside a conversation: they become part of the user's messages."""
    terse = {"role": "system", "content": [{"type": "text", "text": "Be terse."}]}
    user = {"role": "user", "content": "x"}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        reply = await http.post(path, json={**ask("x"), "system": "Add.", "messages": [user, terse]})
        assert reply.status_code == 200, reply.text
        assert engine.messages == [{"role": "system", "content": "Add."}, {"role": "user", "content": "x\n\nBe terse."}]
    reply = await http.post("/v1/messages", json={**ask("x"), "messages": [user, {"role": "system", "content": [USE]}]})
    assert reply.json()["error"]["message"].startswith(
        "messages[1].content[0].type must not be tool_use in a message of the role"
    )


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {**turns("x", THINKING, "y", THINKING, "z"), **managed({"type": CLEAR_THINKING})},
            "context_management.edits[0] (clear_th",
        ),
        (
            {
                **turns("x", [USE], [RESULT]),
                **managed(
                    {
                        "type": CLEAR_USES,
                        "trigger": {"type": "input_tokens", "value": 0},
                        "keep": {"type": "tool_uses", "value": 0},
                    }
                ),
            },
            "context_management.edits[0] (clear_tool_uses_20250919) would change",
        ),
        (managed({"type": "forget"}), "context_management.edits[0]"),
        (
            {"tools": [ADD, {"type": "web_search_20250305", "name": "web_search"}]},
            "tools[1].type must be custom, or left out: only",
        ),
        ({"tools": [ADD, ADD]}, "tools[1].name add is the name of another tool, too"),
        ({"tools": [{**ADD, "name": "a b"}]}, "tools[0].name must be 1 to 128 letters"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name is required"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema is required"),
        ({"tool_choice": {"type": "any"}}, "tool_choice asks for a call, and there are no tools"),
        ({"tools": [ADD], "tool_choice": {"type": "tool"}}, "tool_choice.name is required"),
        ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name names 'x', which is not in tools"),
        ({"tools": [ADD], "tool_choice": "auto"}, "tool_choice must be"),
        ({"tools": [ADD], "tool_choice": {"type": "required"}}, "tool_choice.type must be"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens must be"),
        ({"thinking": {"type": "on"}}, "thinking.type must be"),
        ({"output_config": {"effort": "none"}}, "output_config.effort must be"),
        (turns([RESULT]), "messages[0].content[0].tool_use_id must be the id of a call of a message before, got 'a'"),
        (turns("x", [USE], ["y", RESULT]), "messages[2].content[0].type must be one of text, tool_use"),
        (turns("x", [USE], [{**RESULT, "tool_use_id": "b"}]), "messages[2].content[0].tool_use_id must be the id of a call"),
        (turns("x", [USE], [{**RESULT, "content": [{"type": "image"}]}]), "messages[2].content[0].content must be a string or"),
        (turns("x", [{**USE, "input": "{}"}], [RESULT]), "messages[1].content[0].input must be"),
        (turns("x", [USE]), "messages[1].content has tool_use blocks: their results must come in a message after it"),
        (turns([USE]), "messages[0].content[0].type must not be tool_use in a message of the role user"),
        (
            turns("x", [USE], "y", [RESULT]),
            "messages[3].content[0].type must not be tool_result in a message of the role assistant",
        ),
        (turns([{"type": "image", "source": {}}]), "messages[0].content[0].type must be one of text, tool_use"),
        (turns(5), "messages[0].content must be a string or a list of blocks"),
    ],
)
async def test_refusals(http: httpx.AsyncClient, engine: ScriptedClient, path: str, change: Any, message: str) -> None:
    reply = await http.post(path, json={**ask("x"), **change})
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error"), reply.text
    assert reply.json()["error"]["message"].startswith(message)
    assert engine.seen == []


async def test_a_budget_that_is_too_large(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/messages", json=ask(OPENED, thinking={"type": "enabled", "budget_tokens": 2**40}))
    assert reply.json()["error"]["message"].startswith("thinking.budget_tokens must be")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tools": [ADD]}, "tools is not supported with this model"),
        ({"thinking": {"type": "enabled"}}, "thinking is not supported with this model"),
        ({"output_config": {"effort": "low"}}, "output_config.effort is not supported with this model"),
    ],
)
async def test_models_that_neither_call_nor_think(
    http: httpx.AsyncClient, engine: ScriptedClient, change: Any, message: str
) -> None:
    engine.response_template = None
    reply = await http.post("/v1/messages", json={**ask("x"), **change})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(message)
    for passes in (
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "adaptive"}},
        {"tools": [ADD], "tool_choice": {"type": "none"}},
    ):
        assert (await http.post("/v1/messages", json={**ask("x"), **passes})).status_code == 200
