"""SDKs over jaxserve.client through a proxy that cuts their connections, before a server of two front ends."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import psutil
import pytest

from jaxserve.client import RetryBudget, RetryPolicy, RetryTransport, async_http_client, http_client
from jaxserve.client.sending import Settings
from tests.support.cutting_proxy import CuttingProxy, cutting_proxy
from tests.support.hash_server import FRONT_END, HashServer, hash_server, until

QUICK = RetryPolicy(first_wait=0.05)
QUESTION: list[Any] = [{"role": "user", "content": "What is 17 + 25?"}]
TOKENS = 40
CUTS = (500, 700, 1501, 2999)  # the heads of answers are some 200 bytes, events 250: all but the last end within an event


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HashServer]:
    with hash_server(tmp_path_factory.mktemp("server"), {"frontends": 2, "idempotency_grace": 5.0}, step_seconds=0.01) as running:
        yield running


@pytest.fixture
def proxy(server: HashServer) -> Iterator[CuttingProxy]:
    with cutting_proxy(server.ports()[0]) as running:
        yield running


def chat(client: openai.OpenAI) -> str:
    chunks = client.chat.completions.create(model="hash", messages=QUESTION, max_tokens=TOKENS, stream=True)
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def completion(client: openai.OpenAI) -> str:
    return "".join(
        choice.text
        for chunk in client.completions.create(model="hash", prompt="hello", max_tokens=TOKENS, stream=True)
        for choice in chunk.choices
    )


def response(client: openai.OpenAI) -> str:
    with client.responses.stream(model="hash", input="hello", max_output_tokens=TOKENS) as stream:
        return "".join(event.delta for event in stream if event.type == "response.output_text.delta")


def whole(client: openai.OpenAI) -> str:
    return client.chat.completions.create(model="hash", messages=QUESTION, max_tokens=TOKENS).choices[0].message.content or ""


@pytest.mark.parametrize("asked", [chat, completion, response, whole])
def test_openai_gets_the_undisturbed_text(server: HashServer, proxy: CuttingProxy, asked: Callable[[openai.OpenAI], str]) -> None:
    before = server.until_idle()
    texts = []
    for port, cuts in ((server.ports()[0], ()), (proxy.port, CUTS)):
        proxy.cut(*cuts)
        with openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, http_client=http_client(QUICK)
        ) as client:
            texts.append(asked(client))
    assert texts[0] == texts[1] != ""
    after = server.until_idle()
    assert len(proxy.made) > 1
    assert after["requests_finished_total"] - before["requests_finished_total"] == 2, "one run each, however often it was cut"
    assert after["requests_aborted_total"] == before["requests_aborted_total"]


async def test_openai_on_asyncio(server: HashServer, proxy: CuttingProxy) -> None:
    texts = []
    for port, cuts in ((server.ports()[0], ()), (proxy.port, CUTS)):
        proxy.cut(*cuts)
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, http_client=async_http_client(QUICK)
        ) as client:
            chunks = await client.chat.completions.create(model="hash", messages=QUESTION, max_tokens=TOKENS, stream=True)
            texts.append("".join([choice.delta.content or "" async for chunk in chunks for choice in chunk.choices]))
    assert texts[0] == texts[1] != ""
    assert len(proxy.made) > len(CUTS)


def test_anthropic_gets_the_undisturbed_text(server: HashServer, proxy: CuttingProxy) -> None:
    """Its SDK takes clients of httpx2 alone."""
    texts = []
    for port, cuts in ((server.ports()[0], ()), (proxy.port, CUTS)):
        proxy.cut(*cuts)
        with (
            anthropic.Anthropic(
                base_url=f"http://127.0.0.1:{port}",
                api_key="none",
                max_retries=0,
                http_client=http_client(QUICK, library=httpx2),
            ) as client,
            client.messages.stream(model="hash", max_tokens=TOKENS, messages=QUESTION) as stream,
        ):
            texts.append("".join(stream.text_stream))
    assert texts[0] == texts[1] != ""
    assert len(proxy.made) > len(CUTS)


async def test_anthropic_on_asyncio(server: HashServer, proxy: CuttingProxy) -> None:
    proxy.cut(*CUTS)
    async with (
        anthropic.AsyncAnthropic(
            base_url=f"http://127.0.0.1:{proxy.port}",
            api_key="none",
            max_retries=0,
            http_client=async_http_client(QUICK, library=httpx2),
        ) as client,
        client.messages.stream(model="hash", max_tokens=TOKENS, messages=QUESTION) as stream,
    ):
        told = (await stream.get_final_message()).usage.output_tokens
    assert told == TOKENS
    assert len(proxy.made) > len(CUTS)


def taker(front_ends: list[int], port: int) -> int | None:
    """The front end that took the connection from this port, while it stands."""
    for pid in front_ends:
        if any(one.raddr and one.raddr.port == port for one in psutil.Process(pid).net_connections("tcp")):
            return pid
    return None


def test_a_stream_goes_on_at_another_front_end(server: HashServer, proxy: CuttingProxy) -> None:
    """The one that began it takes no connections while its client comes back."""
    before = server.until_idle()
    front_ends = server.pids(FRONT_END)
    waking: list[threading.Thread] = []
    first: list[int | None] = []

    def wake() -> None:
        """Once the other one has taken the client."""
        try:
            until(lambda: len(proxy.made) == 2 and taker(front_ends, proxy.made[1]) not in {None, first[0]})
        finally:
            psutil.Process(first[0]).resume()

    def stop(_: float) -> None:
        psutil.Process(first[0]).suspend()
        waking.append(threading.Thread(target=wake))
        waking[0].start()

    proxy.cut(10_000)  # which takes so long that it is still there when it is looked at
    transport = RetryTransport(httpx.HTTPTransport(), Settings(httpx, QUICK, RetryBudget()), sleep=stop)
    body = {"model": "hash", "prompt": "hello", "max_tokens": 200, "stream": True, "ignore_eos": True}
    with (
        httpx.Client(transport=transport, timeout=60) as client,
        client.stream("POST", f"http://127.0.0.1:{proxy.port}/v1/completions", json=body) as reply,
    ):
        first.append(taker(front_ends, proxy.made[0]))
        assert first[0] is not None
        lines = list(reply.iter_lines())
    waking[0].join()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    undisturbed = httpx.post(f"{server.http}/v1/completions", json={**body, "stream": False}, timeout=60).json()["choices"][0][
        "text"
    ]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == undisturbed
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert "data: [DONE]" in lines
    assert server.until_idle()["requests_finished_total"] == before["requests_finished_total"] + 2


def test_a_stream_without_the_client_ends_where_it_is_cut(server: HashServer, proxy: CuttingProxy) -> None:
    """What the client is for; and the server ends the run."""
    before = server.until_idle()
    proxy.cut(900)
    with (
        openai.OpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="none", max_retries=0) as client,
        pytest.raises((openai.APIError, httpx2.TransportError, httpx.TransportError)),
    ):
        chat(client)
    assert server.until_idle()["requests_aborted_total"] == before["requests_aborted_total"] + 1


async def test_of_two_hedged_runs_the_server_sees_one_end_early(server: HashServer) -> None:
    before = server.until_idle()
    body = {"model": "hash", "prompt": "hello", "max_tokens": 200}
    async with async_http_client(RetryPolicy(hedge_after=0.5)) as client:  # 200 steps take 2 s
        reply = await client.post(f"{server.http}/v1/completions", json=body)
    assert reply.json()["usage"]["completion_tokens"] == 200
    after = await asyncio.to_thread(server.until_idle)
    names = ("received", "finished", "aborted")
    counts = {name: after[f"requests_{name}_total"] - before[f"requests_{name}_total"] for name in names}
    assert counts == {"received": 2, "finished": 1, "aborted": 1}


def test_a_request_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    """Asked while there is none; the next one answers."""
    policy = RetryPolicy(retries=2000, first_wait=0.1, longest_wait=0.1)
    budget = RetryBudget(1e6)
    texts: list[str] = []
    with cutting_proxy(0) as proxy:
        client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="none", max_retries=0, http_client=http_client(policy, budget)
        )
        with client, hash_server(tmp_path) as server:
            proxy.target = server.ports()[0]
            texts.append(whole(client))
            for process in reversed(server.family()):
                process.send_signal(signal.SIGKILL)
            asking = threading.Thread(target=lambda: texts.append(whole(client)))
            asking.start()
            until(lambda: proxy.taken > 2)
            with hash_server(tmp_path) as next_one:
                proxy.target = next_one.ports()[0]
                asking.join(60)
    assert texts[0] == texts[1] != ""
