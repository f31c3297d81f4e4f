"""The gateway smg in front of two real servers: tokens go both ways, and it does the text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest

from jaxserve.proto import admin_pb2
from jaxserve.proto.admin_pb2_grpc import AdminStub
from tests.support.serve_process import Process, Served
from tests.support.smg import Smg, smg

SMALL = ("--max-num-seqs", "4", "--max-num-batched-tokens", "32")
SECONDS = 60
MESSAGES: list[Any] = [{"role": "user", "content": "3 4 5"}]


@pytest.fixture(scope="module")
def workers(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Process]]:
    with ExitStack() as stack:
        yield [stack.enter_context(worker(served, tmp_path_factory.mktemp("served"))) for _ in range(2)]


@contextmanager
def worker(served: Served, folder: Path) -> Iterator[Process]:
    yield from served(folder, *SMALL)


@pytest.fixture(scope="module")
def gateway(workers: list[Process], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The gateway's base URL, once it has both workers and their tokenizer."""
    urls = [f"grpc://{one.grpc}" for one in workers]
    with smg(tmp_path_factory.mktemp("smg"), "--policy", "round_robin", "--worker-urls", *urls) as running:
        wait_until_it_answers(running)
        yield running.base


def wait_until_it_answers(gateway: Smg) -> None:
    deadline = time.monotonic() + SECONDS
    body = {"model": "pico", "messages": MESSAGES, "max_tokens": 1}
    said = ""
    while True:
        assert gateway.popen.poll() is None, gateway.log.read_text()
        assert time.monotonic() < deadline, f"{gateway.log.read_text()}\n{said}"
        try:
            reply = httpx.post(f"{gateway.base}/v1/chat/completions", json=body, timeout=SECONDS)
        except httpx.TransportError as error:
            said = str(error)
        else:
            if reply.status_code == 200:
                return
            said = reply.text
        time.sleep(0.2)


@pytest.fixture
def sdk(gateway: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def direct(workers: list[Process]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{workers[0].http}/v1", api_key="none", max_retries=0) as client:
        yield client


def finished(workers: list[Process]) -> list[int]:
    counts = []
    for one in workers:
        with grpc.insecure_channel(one.grpc) as channel:
            counts.append(AdminStub(channel).GetLoad(admin_pb2.GetLoadRequest()).finished)
    return counts


def test_the_same_answer_as_without_it(sdk: openai.OpenAI, direct: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "pico", "messages": MESSAGES, "max_tokens": 10, "temperature": 0}
    asked |= {"logprobs": True, "top_logprobs": 2}
    (through,), (wanted,) = (client.chat.completions.create(**asked).choices for client in (sdk, direct))
    assert through.message.content == wanted.message.content
    assert through.message.content
    assert through.finish_reason == wanted.finish_reason
    assert through.logprobs is not None
    assert through.logprobs.content is not None
    assert wanted.logprobs is not None
    assert wanted.logprobs.content is not None
    for one, other in zip(through.logprobs.content, wanted.logprobs.content, strict=False):
        assert one.token == other.token
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_streamed(sdk: openai.OpenAI, direct: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "pico", "messages": MESSAGES, "max_tokens": 10, "temperature": 0}
    wanted = direct.chat.completions.create(**asked)
    stream = sdk.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == wanted.choices[0].message.content
    assert chunks[-1].usage is not None
    assert wanted.usage is not None
    assert chunks[-1].usage.completion_tokens == wanted.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == wanted.usage.prompt_tokens


def test_several_answers(sdk: openai.OpenAI) -> None:
    reply = sdk.chat.completions.create(model="pico", messages=MESSAGES, n=3, max_tokens=6)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]


def test_both_workers_get_their_share(sdk: openai.OpenAI, workers: list[Process]) -> None:
    before = finished(workers)
    for _ in range(8):
        sdk.completions.create(model="pico", prompt="1 2 3 4", max_tokens=4)
    assert [now - then for now, then in zip(finished(workers), before, strict=True)] == [4, 4]


def test_complaints_come_through(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"sampling_params\.max_tokens is 10000"):
        sdk.chat.completions.create(model="pico", messages=MESSAGES, max_tokens=10_000)


def test_a_client_that_goes_away_ends_its_request(gateway: str, workers: list[Process]) -> None:
    body = {"model": "pico", "messages": MESSAGES, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{gateway}/v1/chat/completions", json=body, timeout=SECONDS) as reply:
        next(reply.iter_lines())
    deadline = time.monotonic() + SECONDS
    for one in workers:
        with grpc.insecure_channel(one.grpc) as channel:
            stub = AdminStub(channel)
            while (load := stub.GetLoad(admin_pb2.GetLoadRequest())).active or load.running:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert load.pages_free == load.pages_total


@pytest.mark.one_server("an ingress that was drained is started again by the cluster")
def test_a_worker_that_drains_gets_nothing_more(sdk: openai.OpenAI, workers: list[Process]) -> None:
    """Last: one worker is gone after it."""
    with grpc.insecure_channel(workers[1].grpc) as channel:
        AdminStub(channel).Drain(admin_pb2.DrainRequest())
    assert workers[1].popen.wait(30) == 0
    before = finished(workers[:1])
    answered = 0
    for _ in range(6):  # smg tries another worker where one refuses
        reply = sdk.completions.create(model="pico", prompt="1 2 3 4", max_tokens=4)
        answered += bool(reply.choices)
    assert answered == 6
    assert finished(workers[:1])[0] - before[0] == 6
