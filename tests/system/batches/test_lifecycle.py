"""Batches from upload to download with the openai SDK, over whole servers with a hash engine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import openai
import pytest

from jaxserve.config.server import ServerConfig
from server.batches.records import WINDOW_SECONDS, NewBatch
from server.batches.store import Quotas, Store
from tests.support.batches import URL, begin, check_answers, lines, request, sdk, wait
from tests.support.hash_server import HashServer, hash_server, until

SLOW = 0.01  # seconds that a step takes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HashServer]:
    """A server for the tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("server")
    settings = {"state_dir": str(folder / "state"), "max_batch_lines": 1000}
    with hash_server(folder, settings, step_seconds=SLOW, max_num_seqs=16, num_pages=2001, max_waiting=40) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: HashServer) -> Iterator[openai.OpenAI]:
    with sdk(server) as made:
        yield made


def test_from_upload_to_download(server: HashServer, client: openai.OpenAI) -> None:
    before = server.metrics()
    good = [request(number, 1 + number % 5) for number in range(60)]
    bad = [
        request(100, 4, prompt=[30] * 300),
        request(101, 4, model="another"),
        request(102, 4, temperature=-1),
        request(103, 4, stream=True),
    ]
    batch = wait(client, begin(client, [*good[:30], *bad, *good[30:]], metadata={"run": "7"}))
    assert (batch.status, batch.metadata, batch.errors) == ("completed", {"run": "7"}, None)
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (64, 60, 4)
    assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert batch.output_file_id is not None
    output, errors = lines(client, batch.output_file_id), lines(client, batch.error_file_id)
    assert output.keys() == {one["custom_id"] for one in good}
    check_answers(good, output)
    codes = {name: (one["response"]["status_code"], one["response"]["body"]["error"]["code"]) for name, one in errors.items()}
    assert codes == {
        "r100": (400, "context_length_exceeded"),
        "r101": (404, "model_not_found"),
        "r102": (400, "invalid_request"),
        "r103": (400, "invalid_request"),
    }
    spent = [one["response"]["body"]["usage"] for one in output.values()]
    assert batch.usage is not None
    assert batch.usage.input_tokens == sum(one["prompt_tokens"] for one in spent) == 240
    assert batch.usage.output_tokens == sum(one["completion_tokens"] for one in spent) == sum(1 + n % 5 for n in range(60))
    file = client.files.retrieve(batch.output_file_id)
    assert (file.purpose, file.status) == ("batch_output", "processed")
    until(lambda: server.metrics()["batch_requests_total"] - before["batch_requests_total"] == 64)
    until(lambda: server.metrics()["batches"] >= 1)
    text = httpx.get(f"{server.http}/metrics", timeout=30).text
    assert 'jaxserve:process_resident_memory_bytes{role="batches"}' in text
    assert 'jaxserve:batch_requests_total{fate="failed"} ' in text
    assert not list((Path(server.out).parent / "state" / "work").iterdir())


def test_chats(server: HashServer, client: openai.OpenAI) -> None:
    asked = {"model": "hash", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    line = {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": asked}
    file = client.files.create(file=("chats.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    reply = lines(client, wait(client, batch).output_file_id)["chat"]["response"]["body"]
    direct = httpx.post(f"{server.http}/v1/chat/completions", json=asked, timeout=30).json()
    assert reply.keys() == direct.keys()
    assert [reply[name] for name in ("object", "model", "choices")] == [direct[name] for name in ("object", "model", "choices")]
    assert reply["usage"]["completion_tokens"] == 3


def test_a_file_that_is_wrong_fails_the_batch(client: openai.OpenAI) -> None:
    requests = [request(1, 1), {**request(2, 1), "url": "/v1/chat/completions"}, request(1, 1)]
    batch = wait(client, begin(client, requests))
    assert (batch.status, batch.failed_at is None) == ("failed", False)
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(one.code, one.line, one.param) for one in batch.errors.data] == [
        ("invalid_url", 2, "url"),
        ("duplicate_custom_id", 3, "custom_id"),
    ]
    assert batch.output_file_id is batch.error_file_id is None


def test_a_huge_batch_leaves_room_for_others_and_ends_when_it_is_cancelled(server: HashServer, client: openai.OpenAI) -> None:
    requests = [request(number, 100) for number in range(900)]
    huge = begin(client, requests)
    assert wait(client, huge, done=8).status == "in_progress"
    small = [request(number, 5) for number in range(10)]
    ended = wait(client, begin(client, small))
    assert ended.status == "completed"
    check_answers(small, lines(client, ended.output_file_id))

    def ask(number: int) -> int:
        asked = {"prompt": [number], "max_tokens": 2}
        return httpx.post(f"{server.http}/v1/completions", json=asked, timeout=30).status_code

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(ask, range(32))) == {200}, "the queue holds 40, and is everybody's"
    assert client.batches.retrieve(huge.id).status == "in_progress"
    assert client.batches.cancel(huge.id).status == "cancelling"
    cancelled = wait(client, huge)
    counts = cancelled.request_counts
    assert (cancelled.status, cancelled.cancelled_at is None) == ("cancelled", False)
    assert counts is not None
    assert 8 <= counts.completed < 900
    assert counts.failed == 0
    output = lines(client, cancelled.output_file_id)
    assert len(output) == counts.completed
    check_answers(requests, output)
    assert cancelled.error_file_id is None
    server.until_idle()


def test_a_batch_whose_window_ends_delivers_what_is_done(server: HashServer, client: openai.OpenAI) -> None:
    requests = [request(number, 1 if number < 20 else 200) for number in range(600)]
    content = b"".join(json.dumps(one).encode() + b"\n" for one in requests)
    file = client.files.create(file=("requests.jsonl", content), purpose="batch")
    config = ServerConfig(state_dir=str(Path(server.out).parent / "state"))
    assert config.state_dir is not None
    left = 3.0  # of the window of a batch that was created yesterday
    with closing(Store(config.state_dir, Quotas.of(config), lambda: time.time() - WINDOW_SECONDS + left)) as store:
        created = store.create_batch("", NewBatch(endpoint=URL, input_file_id=file.id, model="hash"))
    batch = wait(client, client.batches.retrieve(created.id))
    assert (batch.status, batch.expired_at is None) == ("expired", False)
    assert batch.request_counts is not None
    output, errors = lines(client, batch.output_file_id), lines(client, batch.error_file_id)
    assert (len(output), len(errors)) == (batch.request_counts.completed, batch.request_counts.failed)
    assert output.keys() | errors.keys() == {one["custom_id"] for one in requests}
    assert not output.keys() & errors.keys()
    assert errors
    assert {(one["response"], one["error"]["code"]) for one in errors.values()} == {(None, "batch_expired")}
    check_answers(requests, output)
