"""What chat and text completions can be asked beyond the usual."""

import json
from typing import Any

import httpx
import pytest

from tests.support.scripted import BOS, MAX_MODEL_LEN, ScriptedClient

SAY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
TEXT: dict[str, Any] = {"prompt": "hello"}
BOTH = [("/v1/chat/completions", SAY), ("/v1/completions", TEXT)]


async def chunks(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    reply = await http.post(path, json={**body, "stream": True})
    assert reply.status_code == 200, reply.text
    *events, done, rest = reply.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.mark.parametrize(("path", "body"), BOTH)
async def test_request_ids(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    reply = await http.post(path, json={**body, "request_id": "mine"})
    prefix = "chatcmpl-" if "chat" in path else "cmpl-"
    assert reply.json()["id"] == prefix + "mine"
    others = {(await http.post(path, json=body)).json()["id"] for _ in range(2)}
    assert len(others) == 2
    assert all(other.startswith(prefix) for other in others)


@pytest.mark.parametrize(("path", "body"), BOTH)
@pytest.mark.parametrize(("limit", "kept"), [(2, "lo"), (5, "hello"), (MAX_MODEL_LEN, "hello"), (-1, "hello")])
async def test_prompts_are_cut(http: httpx.AsyncClient, path: str, body: dict[str, Any], limit: int, kept: str) -> None:
    reply = (await http.post(path, json={**body, "truncate_prompt_tokens": limit, "max_tokens": 16})).json()
    choice = reply["choices"][0]
    assert (choice["text"] if "text" in choice else choice["message"]["content"]) == kept
    assert reply["usage"]["prompt_tokens"] == len(kept)


@pytest.mark.parametrize("output", [None, 1, 100])
async def test_prompts_are_cut_to_leave_room(http: httpx.AsyncClient, engine: ScriptedClient, output: int | None) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 2 * MAX_MODEL_LEN}]}
    chat = await http.post("/v1/chat/completions", json={**long, "truncate_prompt_tokens": -1, "max_tokens": output})
    assert chat.json()["usage"]["prompt_tokens"] == MAX_MODEL_LEN - (output or 1)
    text = {"prompt": "x" * 2 * MAX_MODEL_LEN, "truncate_prompt_tokens": -1, "max_tokens": output}
    completion = await http.post("/v1/completions", json=text)
    assert completion.json()["usage"]["prompt_tokens"] == MAX_MODEL_LEN - (output or 16)
    assert [params.max_tokens for params in engine.seen] == [output, output or 16]


@pytest.mark.parametrize(("path", "body"), BOTH)
@pytest.mark.parametrize("limit", [0, -2, MAX_MODEL_LEN + 1, 10**300])
async def test_impossible_lengths(http: httpx.AsyncClient, path: str, body: dict[str, Any], limit: int) -> None:
    reply = await http.post(path, json={**body, "truncate_prompt_tokens": limit})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "truncate_prompt_tokens")


async def test_several_prompts_are_cut_each(http: httpx.AsyncClient) -> None:
    body = {"prompt": ["hello", "hi"], "truncate_prompt_tokens": 3, "echo": True, "max_tokens": 1}
    assert [choice["text"] for choice in (await http.post("/v1/completions", json=body)).json()["choices"]] == ["llol", "hih"]


@pytest.mark.parametrize(("wanted", "passed"), [(None, "hello"), (True, "hello"), (False, {"prompt_token_ids": [*b"hello"]})])
async def test_special_tokens_by_choice(
    http: httpx.AsyncClient, engine: ScriptedClient, wanted: bool | None, passed: Any
) -> None:
    await http.post("/v1/completions", json={**TEXT, "add_special_tokens": wanted})
    assert engine.prompts == [passed]
    refused = await http.post("/v1/chat/completions", json={**SAY, "add_special_tokens": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "add_special_tokens")


async def test_token_ids_of_chat(http: httpx.AsyncClient) -> None:
    asked = {**SAY, "return_token_ids": True, "n": 2, "max_tokens": 3}
    whole = (await http.post("/v1/chat/completions", json=asked)).json()
    assert whole["prompt_token_ids"] == [*b"hello"]
    assert [choice["token_ids"] for choice in whole["choices"]] == [[*b"hel"]] * 2
    parts = await chunks(http, "/v1/chat/completions", asked)
    assert [part["prompt_token_ids"] for part in parts if "prompt_token_ids" in part] == [[*b"hello"]]
    assert [part["choices"][0].get("token_ids") for part in parts] == [None] * 2 + [[i] for i in b"hheell"] + [None] * 2
    without = (await http.post("/v1/chat/completions", json=SAY)).json()
    assert "token_ids" not in without["choices"][0]
    assert "prompt_token_ids" not in without


async def test_token_ids_of_texts(http: httpx.AsyncClient) -> None:
    asked = {"prompt": ["ab", "c"], "return_token_ids": True}
    whole = (await http.post("/v1/completions", json=asked)).json()["choices"]
    assert [(choice["prompt_token_ids"], choice["token_ids"]) for choice in whole] == [([97, 98], [97, 98]), ([99], [99])]
    choices = [part["choices"][0] for part in await chunks(http, "/v1/completions", asked)]
    for index, ids in enumerate(([97, 98], [99])):
        own = [choice for choice in choices if choice["index"] == index]
        assert (own[0]["prompt_token_ids"], own[0]["text"]) == (ids, "")
        assert [token for choice in own for token in choice.get("token_ids", [])] == ids
    assert "token_ids" not in (await http.post("/v1/completions", json=TEXT)).json()["choices"][0]


async def test_tokens_named_by_their_ids(http: httpx.AsyncClient) -> None:
    asked = {"return_tokens_as_token_ids": True, "max_tokens": 1}
    chat = {**SAY, **asked, "logprobs": True, "top_logprobs": 1}
    text = {**TEXT, **asked, "logprobs": 1, "echo": True}
    whole = (await http.post("/v1/chat/completions", json=chat)).json()["choices"][0]["logprobs"]["content"]
    streamed = [part["choices"][0]["logprobs"] for part in await chunks(http, "/v1/chat/completions", chat)]
    assert whole == next(logprobs["content"] for logprobs in streamed if logprobs)
    assert (whole[0]["token"], whole[0]["bytes"], whole[0]["top_logprobs"][0]["token"]) == ("token_id:104", [104], "token_id:104")
    logprobs = (await http.post("/v1/completions", json=text)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [f"token_id:{i}" for i in b"helloh"]
    assert logprobs["top_logprobs"] == [None, *({f"token_id:{i}": -0.5} for i in b"elloh")]


async def test_an_echo_and_nothing_else(http: httpx.AsyncClient) -> None:
    asked = {"prompt": ["hi", "a"], "max_tokens": 0, "echo": True, "logprobs": 0, "n": 2}
    whole = (await http.post("/v1/completions", json=asked)).json()
    assert [choice["text"] for choice in whole["choices"]] == ["hi", "hi", "a", "a"]
    assert {choice["finish_reason"] for choice in whole["choices"]} == {"length"}
    assert [choice["logprobs"]["token_logprobs"] for choice in whole["choices"]] == [[None, -0.5]] * 2 + [[None]] * 2
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (3, 0)
    parts = await chunks(http, "/v1/completions", {**asked, "stream_options": {"include_usage": True}})
    texts = dict.fromkeys(range(4), "")
    for part in parts[:-1]:
        texts[part["choices"][0]["index"]] += part["choices"][0]["text"]
    assert texts == {0: "hi", 1: "hi", 2: "a", 3: "a"}
    assert (parts[-1]["choices"], parts[-1]["usage"]["completion_tokens"]) == ([], 0)


async def test_an_echo_does_not_tell_what_came_of_the_token_that_is_thrown_away(http: httpx.AsyncClient) -> None:
    asked = {"prompt": "hi", "max_tokens": 0, "echo": True, "stop": "h"}
    assert (await http.post("/v1/completions", json=asked)).json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("echo", [None, False])
async def test_no_tokens_without_an_echo(http: httpx.AsyncClient, echo: bool | None) -> None:
    reply = await http.post("/v1/completions", json={**TEXT, "max_tokens": 0, "echo": echo})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "max_tokens")


async def test_prompt_logprobs(http: httpx.AsyncClient) -> None:
    expected = [None, {"105": {"logprob": -0.5, "rank": 1, "decoded_token": "i"}}]
    text = {"prompt": "hi", "prompt_logprobs": 0}
    chat = {"messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 0}
    assert (await http.post("/v1/completions", json=text)).json()["choices"][0]["prompt_logprobs"] == expected
    assert (await http.post("/v1/chat/completions", json=chat)).json()["prompt_logprobs"] == expected
    for path, body in (("/v1/completions", text), ("/v1/chat/completions", chat)):
        first, *others = (part["choices"][0] for part in await chunks(http, path, body))
        assert first["prompt_logprobs"] == expected
        assert not any("prompt_logprobs" in choice for choice in others)


async def test_developers_are_the_system_and_parts_stay_parts(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": parts, "name": "me"}]
    await http.post("/v1/chat/completions", json={"messages": messages})
    assert engine.messages == [{"role": "system", "content": "d"}, {"role": "user", "content": parts, "name": "me"}]


@pytest.mark.parametrize(
    ("body", "tokens", "texts"),
    [
        ({"prompt": "hé"}, [104, 195, 169], None),
        ({"prompt": ""}, [], None),
        ({"prompt": "hi", "return_token_strs": True, "add_special_tokens": False}, [104, 105], ["h", "i"]),
        ({"messages": SAY["messages"], "return_token_strs": True}, [*b"hello"], [*"hello"]),
        ({"messages": SAY["messages"], "prompt": None}, [*b"hello"], None),
    ],
)
async def test_tokenize(http: httpx.AsyncClient, body: dict[str, Any], tokens: list[int], texts: Any) -> None:
    reply = (await http.post("/tokenize", json={**body, "model": "echo"})).json()
    assert reply == {"count": len(tokens), "max_model_len": MAX_MODEL_LEN, "tokens": tokens, "token_strs": texts}


@pytest.mark.parametrize(("wanted", "first"), [(None, [BOS]), (True, [BOS]), (False, [])])
async def test_special_tokens_of_tokenize(
    http: httpx.AsyncClient, engine: ScriptedClient, wanted: bool | None, first: list[int]
) -> None:
    engine.tokenizer.adds_bos = True
    reply = await http.post("/tokenize", json={"prompt": "hi", "add_special_tokens": wanted})
    assert reply.json()["tokens"] == [*first, 104, 105]
    cut = {**TEXT, "add_special_tokens": wanted, "truncate_prompt_tokens": 6, "echo": True, "max_tokens": 0}
    assert (await http.post("/v1/completions", json=cut)).json()["usage"]["prompt_tokens"] == len(first) + 5


async def test_template_arguments_of_tokenize(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    extra = {"chat_template_kwargs": {"x": 1}, "continue_final_message": True}
    await http.post("/tokenize", json={**SAY, **extra})
    assert engine.arguments == {"x": 1, "add_generation_prompt": False, "continue_final_message": True}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", **SAY}, "messages"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/tokenize", {**SAY, "documents": [{}]}, "documents"),
        ("/tokenize", {**SAY, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [258]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
    ],
)
async def test_refusals_of_the_tokenizer(http: httpx.AsyncClient, path: str, body: dict[str, Any], param: str) -> None:
    reply = await http.post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_models_of_the_tokenizer(http: httpx.AsyncClient) -> None:
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        assert (await http.post(path, json={**body, "model": "other"})).status_code == 404


async def test_detokenize_and_tokenizer_info(http: httpx.AsyncClient) -> None:
    assert (await http.post("/detokenize", json={"tokens": [104, 257, 105]})).json() == {"prompt": "h</s>i"}
    info = (await http.get("/tokenizer_info")).json()
    assert (info["bos_token"], info["eos_token"], info["eos_token_id"]) == ("<s>", "</s>", 257)
    assert (info["vocab_size"], info["model_max_length"], info["special_tokens"]) == (
        258,
        MAX_MODEL_LEN,
        {"<s>": 256, "</s>": 257},
    )
    assert "messages" in info["chat_template"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", SAY, "messages"),
        ("/tokenize", SAY, "messages"),
        ("/v1/responses", {"input": "hello"}, "input"),
    ],
)
async def test_no_chat_template(
    http: httpx.AsyncClient, engine: ScriptedClient, path: str, body: dict[str, Any], param: str
) -> None:
    engine.chat_template = None
    reply = await http.post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert (await http.get("/tokenizer_info")).json()["chat_template"] is None


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/uploads/upload_1", "not supported by this server yet"),
        ("/v1/files/file-1/lines", "there is nothing at"),
        ("/v1/audio/speech", "generates text"),
        ("/v1/responses/resp_1", "stores nothing"),
        ("/v1/filesystem", "there is nothing at"),
    ],
)
async def test_endpoints_that_are_not_served(http: httpx.AsyncClient, path: str, words: str) -> None:
    reply = await http.post(path, json={})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
    assert words in reply.json()["error"]["message"]
