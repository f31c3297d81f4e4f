"""Lines answered as their endpoints would: replies, their errors, and errors that are not theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jaxserve.errors import DrainingError, EngineDeadError, JaxserveError, QueueFullError
from jaxserve.jobs.answers import Answer
from jaxserve.jobs.lines import Line
from jaxserve.jobs.summary import Counts
from jaxserve.types import ServiceClass
from server.http.bodies import BodyAnswerer
from tests.support.scripted import ScriptedClient

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
GOOD = {"model": "echo", "prompt": "hello", "max_tokens": 8}


def answered(client: Any, url: str, body: Any, tenant: str = "") -> Answer:
    return asyncio.run(BodyAnswerer(client, tenant).answer(Line(1, "a", url, body)))


def test_a_reply_is_the_endpoints() -> None:
    client = ScriptedClient()
    answer = answered(client, TEXT, GOOD, tenant="acme")
    assert answer.status == 200
    assert answer.request_id == answer.body["id"]
    assert answer.body["choices"][0]["text"] == "hello"
    assert answer.body["usage"]["prompt_tokens"] == 5
    assert client.options[0].tenant == "acme"
    assert client.options[0].service_class is ServiceClass.BATCH


def test_a_conversation_is_answered_too() -> None:
    answer = answered(ScriptedClient(), CHAT, {"model": "echo", "messages": [{"role": "user", "content": "hi"}]})
    assert answer.status == 200
    assert answer.body["object"] == "chat.completion"


def test_a_response_is_answered_and_counted() -> None:
    answer = answered(ScriptedClient(), "/v1/responses", {"input": "hello", "max_output_tokens": 8}, tenant="acme")
    assert (answer.status, answer.body["object"], answer.request_id) == (200, "response", answer.body["id"])
    counts = Counts()
    counts.count_usage(answer.body)
    usage = answer.body["usage"]
    assert (counts.prompt_tokens, counts.completion_tokens) == (usage["input_tokens"], usage["output_tokens"])
    assert counts.cached_tokens == usage["input_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize(
    ("url", "body", "status", "code", "words"),
    [
        (TEXT, {**GOOD, "temperature": "hot"}, 400, "invalid_request", "temperature"),
        (TEXT, {**GOOD, "prompt": "x" * 600}, 400, "context_length_exceeded", "prompt"),
        (TEXT, {**GOOD, "stream": True}, 400, "invalid_request", "stream"),
        (TEXT, {**GOOD, "model": "other"}, 404, "model_not_found", "other"),
        (TEXT, {}, 400, "invalid_request", "required"),
        ("/v1/moderations", {}, 400, "invalid_request", "not supported by this server yet: batches take /v1/chat/completions, "),
        ("/v1/messages", {}, 400, "invalid_request", "/v1/responses"),
        ("/v1/nonsense", GOOD, 400, "invalid_request", "/v1/nonsense"),
        ("", GOOD, 400, "invalid_request", "url"),
    ],
)
def test_an_error_of_the_request_is_its_answer(url: str, body: Any, status: int, code: str, words: str) -> None:
    answer = answered(ScriptedClient(), url, body)
    assert (answer.status, answer.body["error"]["code"]) == (status, code)
    assert words in answer.body["error"]["message"]
    assert answer.request_id.startswith("req-")


@pytest.mark.parametrize("error", [QueueFullError("full", retry_after=1.0), EngineDeadError("gone"), DrainingError("closing")])
def test_an_error_of_the_engine_is_not_the_lines(error: JaxserveError) -> None:
    with pytest.raises(type(error)):
        answered(ScriptedClient(failure=error), TEXT, GOOD)


def test_a_bug_ends_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    answer = answered(ScriptedClient(failure=ZeroDivisionError("a bug")), TEXT, GOOD)
    assert (answer.status, answer.body["error"]["code"]) == (500, "internal_error")
    assert "line 1" in caplog.text
