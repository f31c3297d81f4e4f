"""The openai SDK with its own defaults, retries among them, against a server process that asks for keys."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.hash_server import ENGINE, hash_server, until
from tests.system.interop.conftest import Gated
from tests.system.interop.questions import held_out

SUM: dict[str, Any] = {"model": "pico", "messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0}
LONG: dict[str, Any] = {"model": "pico", "prompt": "1 2 3", "max_tokens": 450, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def sdk(pico: Gated) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=pico.base_url, api_key=pico.keys["acme"]) as client:
        yield client


@pytest.fixture
async def asdk(pico: Gated) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=pico.base_url, api_key=pico.keys["acme"]) as client:
        yield client


class Statuses(list[int]):
    """What a client was answered, try by try."""

    def client(self, base_url: str, api_key: str, max_retries: int, *also: Any) -> openai.OpenAI:
        hooks = [lambda response: self.append(response.status_code), *also]
        return openai.OpenAI(
            base_url=base_url,
            api_key=api_key,
            max_retries=max_retries,
            http_client=openai.DefaultHttpxClient(event_hooks={"response": hooks}),
        )


def quiet(pico: Gated) -> bool:
    seen = pico.metrics()
    return not any(value for (name, _), value in seen.items() if name in ("requests_active", "kv_cache_usage_perc"))


@pytest.mark.fleet
async def test_many_sums_at_once(asdk: openai.AsyncOpenAI) -> None:
    tasks = held_out("addition", 24)

    async def ask(question: str) -> str | None:
        message: Any = {"role": "user", "content": question}
        reply = await asdk.chat.completions.create(model="pico", messages=[message], temperature=0, max_tokens=16)
        return reply.choices[0].message.content

    answers = await asyncio.gather(*(ask(question) for question, _ in tasks))
    right = [answer == expected for answer, (_, expected) in zip(answers, tasks, strict=True)]
    assert sum(right) >= 0.9 * len(right)


@pytest.mark.fleet
def test_chat_with_everything_that_it_tells(sdk: openai.OpenAI) -> None:
    raw = sdk.chat.completions.with_raw_response.create(
        **SUM, logprobs=True, top_logprobs=2, extra_headers={"X-Request-Id": "sum-1"}
    )
    reply = raw.parse()
    choice = reply.choices[0]
    assert (choice.message.content, choice.finish_reason, reply.usage and reply.usage.completion_tokens) == ("42", "stop", 3)
    assert reply._request_id == raw.headers["x-request-id"] == "sum-1"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [token.token for token in choice.logprobs.content] == ["4", "2", "<|end|>"]
    assert all(len(token.top_logprobs) == 2 and token.logprob > -0.1 for token in choice.logprobs.content)


@pytest.mark.fleet
def test_the_stream_helper(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(**SUM, stream_options={"include_usage": True}, logprobs=True) as stream:
        kinds = {event.type for event in stream}
        whole = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta", "logprobs.content.done"} <= kinds
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("42", "stop")
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.usage.total_tokens) == (3, 17)


@pytest.mark.fleet
def test_responses(sdk: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "pico", "input": "What is 17 + 25?", "temperature": 0}
    assert sdk.responses.create(**asked).output_text == "42"
    with sdk.responses.stream(**asked) as stream:
        assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == "42"
        assert stream.get_final_response().status == "completed"


def test_what_asks_for_nothing_is_no_reason_to_refuse(sdk: openai.OpenAI) -> None:
    """Defaults that programs spell out, and fields that are for accounts and caches elsewhere."""
    harmless: dict[str, Any] = {
        **{"logit_bias": {}, "stop": [], "tools": [], "tool_choice": "none", "parallel_tool_calls": True},
        **{"n": 1, "top_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "logprobs": False, "top_logprobs": 0},
        **{"response_format": {"type": "text"}, "modalities": ["text"], "reasoning_effort": "none", "store": False},
        **{"metadata": {"a": "b"}, "user": "u", "safety_identifier": "x", "prompt_cache_key": "x", "service_tier": "auto"},
    }
    assert sdk.chat.completions.create(**SUM, **harmless).choices[0].message.content == "42"
    kept = sdk.responses.create(model="pico", input="What is 17 + 25?", temperature=0, top_logprobs=0, truncation="disabled")
    assert kept.output_text == "42"


def test_an_answer_is_sent_back_as_it_came(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(**SUM).choices[0].message
    for turn in (answer, answer.model_dump()):
        turns: Any = [*SUM["messages"], turn, {"role": "user", "content": "What is 20 + 25?"}]
        assert sdk.chat.completions.create(**{**SUM, "messages": turns}).choices[0].message.content == "45"


TOOLS = [{"type": "function", "function": {"name": "f"}}]
NAMED = {"type": "function", "function": {"name": "g"}}


@pytest.mark.parametrize(
    ("kind", "change", "code", "param"),
    [
        (openai.BadRequestError, {"temperature": -1}, "invalid_request", "temperature"),
        (openai.BadRequestError, {"max_tokens": 10_000}, "context_length_exceeded", "max_tokens"),
        (openai.BadRequestError, {"tools": TOOLS, "tool_choice": NAMED}, "invalid_request", "tool_choice"),
        (openai.NotFoundError, {"model": "gpt-5"}, "model_not_found", "model"),
        (openai.APIStatusError, {"max_tokens": 450, "extra_body": {"timeout": 1e-3}}, "deadline_exceeded", "timeout"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_types(
    sdk: openai.OpenAI, kind: type[openai.APIStatusError], change: dict[str, Any], code: str, param: str | None, stream: bool
) -> None:
    with pytest.raises(kind) as info:
        sdk.with_options(max_retries=0).chat.completions.create(**{**SUM, **change, "stream": stream})
    assert (info.value.code, info.value.param) == (code, param)
    assert info.value.request_id


def test_what_the_model_cannot_do_is_refused(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="task embed: this model is served to generate text"):
        sdk.embeddings.create(model="pico", input="x")


def test_a_wrong_key(pico: Gated) -> None:
    with openai.OpenAI(base_url=pico.base_url, api_key="sk-wrong") as client:
        with pytest.raises(openai.AuthenticationError) as info:
            client.chat.completions.create(**SUM)
        assert info.value.code == "invalid_api_key"


def test_a_429_is_tried_again_when_the_server_says(pico: Gated) -> None:
    """A tenant of one request at a time: the second comes in once the first has gone away."""
    statuses = Statuses()
    with openai.OpenAI(base_url=pico.base_url, api_key=pico.keys["one-at-a-time"]) as other:
        first = other.completions.create(**LONG, n=32, stream=True)
        next(iter(first))
        told: list[str] = []

        def refused(response: Any) -> None:
            if response.status_code == 429:
                told.append(response.headers["retry-after"])
                first.close()

        with statuses.client(pico.base_url, pico.keys["one-at-a-time"], 10, refused) as client:
            assert client.chat.completions.create(**SUM).choices[0].message.content == "42"
    assert (statuses[0], statuses[-1], set(statuses)) == (429, 200, {429, 200})
    assert all(1 <= int(seconds) <= 2 for seconds in told)


def test_a_client_that_runs_out_of_patience_ends_its_requests(pico: Gated, sdk: openai.OpenAI) -> None:
    aborted = "requests_aborted_total", ("pico", "client_gone")
    before = pico.metrics().get(aborted, 0.0)
    with pytest.raises(openai.APITimeoutError):
        sdk.with_options(timeout=0.5, max_retries=1).completions.create(**LONG, n=32)
    until(lambda: quiet(pico))
    assert pico.metrics()[aborted] - before == 2, "both tries"


@pytest.mark.fleet
def test_a_stream_that_is_closed_ends_its_request(pico: Gated, sdk: openai.OpenAI) -> None:
    aborted = "requests_aborted_total", ("pico", "client_gone")
    before = pico.metrics().get(aborted, 0.0)
    with sdk.completions.create(**LONG, stream=True) as stream:
        next(iter(stream))
    until(lambda: quiet(pico))
    assert pico.metrics()[aborted] - before == 1


def test_a_503_is_tried_again_until_the_engine_is_back(tmp_path: Path) -> None:
    """The engine is killed under a stream, which resumes in the next one; a new request is refused and retried until then."""
    asked: dict[str, Any] = {"model": "hash", "prompt": [72, 101], "max_tokens": 200}
    statuses = Statuses()
    with (
        hash_server(tmp_path, step_seconds=0.01) as server,
        statuses.client(f"{server.http}/v1", "none", 10) as client,
    ):
        wanted = client.completions.create(**asked).choices[0].text
        (engine,) = server.pids(ENGINE)
        stream = client.completions.create(**asked, stream=True)
        text = next(iter(stream)).choices[0].text
        os.kill(engine, signal.SIGKILL)
        while httpx.get(f"{server.http}/ready").status_code == 200:  # the server may need a moment to notice
            time.sleep(0.01)
        assert client.completions.create(**asked).choices[0].text == wanted
        for chunk in stream:
            text += chunk.choices[0].text
        assert text == wanted
    assert (statuses[:2], statuses[2], statuses[-1], set(statuses[2:])) == ([200, 200], 503, 200, {503, 200})
