"""Every HTTP surface of one server process gives the same text: the openai and anthropic SDKs and plain requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.support.serve_process import Process, Served
from tests.support.tiny_checkpoint import write_tiny_checkpoint

SMALL = ("--max-num-seqs", "2", "--max-num-batched-tokens", "16", "--max-model-len", "128")
SAY: Any = [{"role": "user", "content": "hello there"}]
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0}


@pytest.fixture(scope="module")
def tiny(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("http")
    yield from served(folder, str(write_tiny_checkpoint(folder / "tiny")), "--load-format", "dummy", *SMALL)


@pytest.fixture
def sdk(tiny: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny.http}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def http(tiny: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tiny.http, timeout=60) as client:
        yield client


@pytest.fixture
def said(sdk: openai.OpenAI) -> str:
    """What chat completions answer."""
    reply = sdk.chat.completions.create(**GREEDY, messages=SAY, max_tokens=12)
    content: str = reply.choices[0].message.content
    assert content
    return content


def test_responses_say_what_chat_says(sdk: openai.OpenAI, said: str) -> None:
    whole = sdk.responses.create(**GREEDY, input=SAY, max_output_tokens=12)
    assert (whole.output_text, whole.status) == (said, "incomplete")
    with sdk.responses.stream(**GREEDY, input="hello there", max_output_tokens=12) as stream:
        pieces = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert pieces == said


def test_messages_say_what_chat_says(tiny: Process, said: str) -> None:
    with anthropic.Anthropic(base_url=tiny.http, api_key="none", max_retries=0) as claude:
        ask: dict[str, Any] = {"model": "tiny", "messages": SAY, "max_tokens": 12, "extra_body": {"temperature": 0}}
        whole = claude.messages.create(**ask)
        assert (whole.content[0].to_dict()["text"], whole.stop_reason) == (said, "max_tokens")
        with claude.messages.stream(**ask) as stream:
            assert "".join(stream.text_stream) == said
        counted = claude.messages.count_tokens(model="tiny", messages=SAY)
        assert whole.usage.cache_read_input_tokens is not None
        assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


_HALF = '{"type": "structural_tag", "format": {"type": "any_text", "\\ud800": 1}}'
POISON = {
    "a count beyond any float": '{"json": {"type": "array", "minItems": 1%s, "items": false}}' % ("0" * 400),
    "a reference of 5,000 digits": '{"json": {"allOf": [{}], "$ref": "#/allOf/%s"}}' % ("9" * 5000),
    "half of a surrogate pair": json.dumps({"structural_tag": _HALF}),
}


@pytest.mark.parametrize("form", POISON.values(), ids=POISON)
def test_no_form_of_output_ends_the_engine(http: httpx.Client, said: str, form: str) -> None:
    body = f'{{"model": "tiny", "prompt": "x", "max_tokens": 1, "structured_outputs": {form}}}'
    reply = http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request"), reply.text
    assert said
    assert http.post("/v1/chat/completions", json={**GREEDY, "messages": SAY, "max_tokens": 12}).status_code == 200


def test_tokens_of_a_conversation_say_what_it_says(http: httpx.Client, sdk: openai.OpenAI, said: str) -> None:
    told = http.post("/tokenize", json={"messages": SAY, "return_token_strs": True}).json()
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert sdk.completions.create(**GREEDY, prompt=told["tokens"], max_tokens=12).choices[0].text == said
    assert http.post("/detokenize", json={"tokens": told["tokens"]}).json()["prompt"] == "".join(told["token_strs"])
    info = http.get("/tokenizer_info").json()
    assert "message" in info["chat_template"]
    assert info["special_tokens"][info["eos_token"]] == info["eos_token_id"]


def test_token_ids_of_an_answer(sdk: openai.OpenAI, http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"messages": SAY}).json()["tokens"]
    extra = {"return_token_ids": True, "request_id": "mine"}
    reply = sdk.chat.completions.create(**GREEDY, messages=SAY, max_tokens=6, extra_body=extra).to_dict()
    assert (reply["id"], reply["prompt_token_ids"]) == ("chatcmpl-mine", tokens)
    made: Any = reply["choices"][0]["token_ids"]
    assert len(made) == 6
    stream = sdk.completions.create(**GREEDY, prompt=tokens, max_tokens=6, stream=True, extra_body={"return_token_ids": True})
    choices = [chunk.choices[0].to_dict() for chunk in stream]
    assert choices[0]["prompt_token_ids"] == tokens
    assert [token for choice in choices for token in choice.get("token_ids", [])] == made


def test_the_end_of_a_long_prompt(sdk: openai.OpenAI, http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": "one two three four", "add_special_tokens": False}).json()["tokens"]
    short = sdk.completions.create(**GREEDY, prompt=tokens[-3:], max_tokens=5)
    extra = {"truncate_prompt_tokens": 3, "add_special_tokens": False}
    cut = sdk.completions.create(**GREEDY, prompt="one two three four", max_tokens=5, extra_body=extra)
    assert (cut.choices[0].text, cut.usage) == (short.choices[0].text, short.usage)
    whole = sdk.completions.create(**GREEDY, prompt=tokens * 99, max_tokens=5, extra_body={"truncate_prompt_tokens": -1})
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (123, 5)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_text_is_scored_as_it_was_made(sdk: openai.OpenAI, http: httpx.Client, max_tokens: int) -> None:
    """As an evaluation harness asks: echo, log-probabilities, lists of token ids."""
    prompt = http.post("/tokenize", json={"prompt": "hello there"}).json()["tokens"]
    made = sdk.completions.create(**GREEDY, prompt=prompt, max_tokens=4, logprobs=1, extra_body={"return_token_ids": True})
    ids: Any = made.choices[0].to_dict()["token_ids"]
    assert made.choices[0].logprobs is not None
    text, other = [*prompt, *ids], prompt[:2]
    scored = sdk.completions.create(**GREEDY, prompt=[text, other], max_tokens=max_tokens, echo=True, logprobs=1)
    for choice, tokens in zip(scored.choices, (text, other), strict=True):
        told = choice.logprobs
        assert told is not None
        assert told.tokens is not None
        assert told.token_logprobs is not None
        assert told.top_logprobs is not None
        assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(tokens) + max_tokens
        assert (told.token_logprobs[0], told.top_logprobs[0]) == (None, None)
        assert all(isinstance(value, float) for value in told.token_logprobs[1:])
        assert choice.finish_reason == "length"
    assert scored.choices[0].logprobs is not None
    values = scored.choices[0].logprobs.token_logprobs
    assert values is not None
    assert values[len(prompt) : len(text)] == pytest.approx(made.choices[0].logprobs.token_logprobs, abs=1e-4)
    assert scored.usage is not None
    assert (scored.usage.prompt_tokens, scored.usage.completion_tokens) == (len(text) + len(other), 2 * max_tokens)
