"""The openai SDK against a real server."""

from dataclasses import asdict
from typing import Any

import openai
import pytest

from jaxserve.engine.events import WeightRange
from jaxserve.errors import InternalError, QueueFullError
from tests.support.scripted import ScriptedClient

CHAT: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
TEXT: dict[str, Any] = {"model": "echo", "prompt": "hello"}


async def test_chat(sdk: openai.AsyncOpenAI, engine: ScriptedClient) -> None:
    reply = await sdk.chat.completions.create(**CHAT)
    choice = reply.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "hello", "stop")
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (5, 5, 10)
    assert reply.usage.prompt_tokens_details.cached_tokens == 2
    assert (reply.object, reply.model, reply.id[:9]) == ("chat.completion", "echo", "chatcmpl-")
    assert engine.arguments == {"add_generation_prompt": True, "continue_final_message": False}
    assert engine.seen[0].max_tokens is None


async def test_chat_stream(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "hello"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 10
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


async def test_chat_stream_with_continuous_usage(sdk: openai.AsyncOpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    stream = await sdk.chat.completions.create(**CHAT, stream=True, stream_options=options)
    counts = [chunk.usage.completion_tokens async for chunk in stream if chunk.usage is not None]
    assert counts == [0, 1, 2, 3, 4, 5, 5, 5]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("times", [0, 2])
async def test_usage_says_how_often_sequences_went_on_elsewhere(
    sdk: openai.AsyncOpenAI, engine: ScriptedClient, times: int, stream: bool
) -> None:
    engine.resumed = times
    told = []
    for create, body in ((sdk.chat.completions.create, CHAT), (sdk.completions.create, TEXT)):
        if stream:
            *_, last = [chunk async for chunk in await create(**body, n=2, stream=True, stream_options={"include_usage": True})]
        else:
            last = await create(**body, n=2)
        told.append(last.usage.model_extra)
    assert told == [{"resumed": 2 * times}] * 2 if times else told == [{}] * 2


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_say_which_weights_their_tokens_are_of(
    sdk: openai.AsyncOpenAI, engine: ScriptedClient, stream: bool
) -> None:
    """In the choice's last chunk; nothing where weights have no version."""
    for versions in (None, (WeightRange("default", 0, 2), WeightRange(7, 2, 5))):
        engine.weight_versions = versions
        for create, body in ((sdk.chat.completions.create, CHAT), (sdk.completions.create, TEXT)):
            replies = [chunk async for chunk in await create(**body, stream=True)] if stream else [await create(**body)]
            choices = [reply.choices[0].model_dump() for reply in replies]
            told = [choice["weight_versions"] for choice in choices if "weight_versions" in choice]
            assert told == ([] if versions is None else [[asdict(one) for one in versions]])
            assert versions is None or choices[-1]["finish_reason"] is not None
            assert versions is None or "weight_versions" in choices[-1]


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_logprobs(sdk: openai.AsyncOpenAI, stream: bool) -> None:
    if stream:
        events = await sdk.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2, stream=True)
        parts = [chunk.choices[0].logprobs async for chunk in events]
    else:
        reply = await sdk.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
        parts = [reply.choices[0].logprobs]
    content = [token for part in parts if part is not None for token in part.content or ()]
    assert "".join(token.token for token in content) == "hello"
    assert [token.bytes for token in content[:2]] == [[104], [101]]
    assert [len(token.top_logprobs) for token in content] == [2] * 5


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_with_several_choices(sdk: openai.AsyncOpenAI, stream: bool) -> None:
    texts = {0: "", 1: "", 2: ""}
    reasons = {}
    if stream:
        async for chunk in await sdk.chat.completions.create(**CHAT, n=3, stream=True):
            choice = chunk.choices[0]
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason is not None:
                reasons[choice.index] = choice.finish_reason
    else:
        for whole in (await sdk.chat.completions.create(**CHAT, n=3)).choices:
            texts[whole.index] = whole.message.content or ""
            reasons[whole.index] = whole.finish_reason
    assert texts == dict.fromkeys(range(3), "hello")
    assert reasons == dict.fromkeys(range(3), "stop")


async def test_stops_and_limits(sdk: openai.AsyncOpenAI) -> None:
    stopped = await sdk.chat.completions.create(**CHAT, stop="l")
    limited = await sdk.chat.completions.create(**CHAT, max_completion_tokens=3)
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("he", "stop")
    assert (limited.choices[0].message.content, limited.choices[0].finish_reason) == ("hel", "length")


async def test_template_arguments(sdk: openai.AsyncOpenAI, engine: ScriptedClient) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "continue_final_message": True}
    await sdk.chat.completions.create(**CHAT, extra_body=extra)
    assert engine.arguments == {
        "enable_thinking": False,
        "add_generation_prompt": False,
        "continue_final_message": True,
    }


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("hello", ["hello"]),
        (["hello", "bye"], ["hello", "bye"]),
        ([104, 105], ["hi"]),
        ([[104, 105], [104]], ["hi", "h"]),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
async def test_completions_of_every_prompt_shape(sdk: openai.AsyncOpenAI, prompt: Any, texts: list[str], n: int) -> None:
    reply = await sdk.completions.create(model="echo", prompt=prompt, n=n)
    expected = [text for text in texts for _ in range(n)]
    assert [choice.text for choice in reply.choices] == expected
    assert [choice.index for choice in reply.choices] == list(range(len(expected)))
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len("".join(texts))
    assert reply.usage.completion_tokens == len("".join(expected))

    streamed = [""] * len(expected)
    async for chunk in await sdk.completions.create(model="echo", prompt=prompt, n=n, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == expected


async def test_completions_default_to_sixteen_tokens(sdk: openai.AsyncOpenAI) -> None:
    reply = await sdk.completions.create(model="echo", prompt="x" * 40)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("x" * 16, "length")


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_with_logprobs(sdk: openai.AsyncOpenAI, stream: bool) -> None:
    arguments: dict[str, Any] = {"model": "echo", "prompt": [104, 105], "echo": True, "logprobs": 1, "max_tokens": 1}
    if stream:
        choices = [chunk.choices[0] async for chunk in await sdk.completions.create(**arguments, stream=True)]
    else:
        choices = (await sdk.completions.create(**arguments)).choices
    parts = [choice.logprobs for choice in choices if choice.logprobs is not None]
    assert "".join(choice.text for choice in choices) == "hih"
    assert [token for part in parts for token in part.tokens or ()] == ["h", "i", "h"]
    assert [value for part in parts for value in part.token_logprobs or ()] == [None, -0.5, -0.5]
    assert [offset for part in parts for offset in part.text_offset or ()] == [0, 1, 2]


async def test_models(sdk: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in sdk.models.list()] == ["echo"]
    assert (await sdk.models.retrieve("echo")).owned_by == "jaxserve"
    with pytest.raises(openai.NotFoundError) as info:
        await sdk.models.retrieve("other/model")
    assert info.value.code == "model_not_found"


async def test_errors_are_the_sdks_own(sdk: openai.AsyncOpenAI, engine: ScriptedClient) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await sdk.chat.completions.create(**{**CHAT, "model": "gpt"})
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        await sdk.chat.completions.create(**CHAT, temperature=-1)
    assert (wrong.value.code, wrong.value.param, wrong.value.type) == (
        "invalid_request",
        "temperature",
        "invalid_request_error",
    )
    engine.failure = QueueFullError("the queue is full", retry_after=2.0)
    with pytest.raises(openai.RateLimitError) as full:
        await sdk.chat.completions.create(**CHAT)
    assert full.value.response.headers["retry-after"] in ("2", "3")


@pytest.mark.parametrize("failure", [InternalError("this request failed"), RuntimeError("a secret")])
async def test_a_failure_in_mid_stream_is_an_error_event(
    sdk: openai.AsyncOpenAI, engine: ScriptedClient, failure: Exception
) -> None:
    engine.failure, engine.fail_after = failure, 2
    text = ""
    with pytest.raises(openai.APIError) as info:  # noqa: PT012 - the stream fails while it is read
        async for chunk in await sdk.chat.completions.create(**CHAT, stream=True):
            text += chunk.choices[0].delta.content or ""
    assert text == "he"
    assert info.value.code == "internal_error"
    assert "secret" not in str(info.value)
