"""Files and batches by the openai SDK, against a server process that asks for keys."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

from tests.support.hash_server import until
from tests.system.interop.conftest import Gated
from tests.system.interop.questions import held_out

pytestmark = pytest.mark.fleet

ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture
def sdk(pico: Gated) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=pico.base_url, api_key=pico.keys["acme"], max_retries=0) as client:
        yield client


def test_a_batch_answers_what_chat_answers(sdk: openai.OpenAI) -> None:
    """And one line that is wrong ends in the file of errors."""
    questions = [question for question, _ in held_out("addition", 6)]
    asked = [
        {"model": "pico", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 16}
        for question in questions
    ]
    bodies = {**{str(number): body for number, body in enumerate(asked)}, "wrong": {**asked[0], "temperature": -1}}
    lines = [
        json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body})
        for name, body in bodies.items()
    ]
    stored = sdk.files.create(file=("sums.jsonl", "\n".join(lines).encode()), purpose="batch")
    batch = sdk.batches.create(input_file_id=stored.id, endpoint="/v1/chat/completions", completion_window="24h")
    until(lambda: sdk.batches.retrieve(batch.id).status in ENDED)
    ended = sdk.batches.retrieve(batch.id)
    assert ended.request_counts is not None
    assert (ended.status, ended.request_counts.completed, ended.request_counts.failed) == ("completed", len(asked), 1)
    assert ended.output_file_id is not None
    assert ended.error_file_id is not None
    answers = {
        line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"]
        for line in map(json.loads, sdk.files.content(ended.output_file_id).text.splitlines())
    }
    for number, question in enumerate(questions):
        now = sdk.chat.completions.create(
            model="pico", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=16
        )
        assert answers[str(number)] == now.choices[0].message.content
    (wrong,) = map(json.loads, sdk.files.content(ended.error_file_id).text.splitlines())
    assert (wrong["custom_id"], wrong["response"]["body"]["error"]["param"]) == ("wrong", "temperature")
