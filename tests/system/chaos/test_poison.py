"""Requests that kill the engine process: they get an error, and all others their tokens."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import httpx

from tests.support.batches import begin, check_answers, count_done, lines, request, sdk, wait
from tests.support.hash_executor import expected
from tests.support.hash_server import ENGINE, HashServer, hash_server
from tests.system.chaos.test_processes import client_of

STEP, DEADLY, TOKENS = 0.01, 259, 60


async def ask(client: httpx.AsyncClient, prompt: list[int], tokens: int = TOKENS) -> httpx.Response:
    """The reply, of a server that may be between two engines."""
    body = {"prompt": prompt, "max_tokens": tokens, "return_token_ids": True, "ignore_eos": True}
    while True:
        reply = await client.post("/v1/completions", json=body)
        if reply.status_code != 503:
            return reply
        await asyncio.sleep(0.1)


def assert_whole(prompt: list[int], reply: httpx.Response, tokens: int = TOKENS) -> None:
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["token_ids"] == expected(prompt, tokens, vocab=260)


def assert_convicted(reply: httpx.Response) -> None:
    error: dict[str, Any] = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (500, "engine_killed_by_request")
    assert reply.headers.get("x-should-retry") != "true"


async def count_engines(server: HashServer, stopped: asyncio.Event) -> int:
    seen: set[int] = set()
    while not stopped.is_set():
        seen.update(server.pids(ENGINE))
        await asyncio.sleep(0.05)
    return len(seen)


async def test_a_request_that_kills_the_engine_is_found_and_its_neighbours_lose_nothing(tmp_path: Path) -> None:
    """Two API servers share the engine, which may not be restarted more than once otherwise."""
    with hash_server(tmp_path, {"frontends": 2, "max_engine_restarts": 1}, step_seconds=STEP, deadly=DEADLY) as server:
        harmless = ([10 + number, 11, 12] for number in itertools.count())  # a request that resumes reads its own output, too
        prompts = list(itertools.islice((one for one in harmless if DEADLY not in expected(one, TOKENS, vocab=260)), 3))
        stopped = asyncio.Event()
        counting = asyncio.create_task(count_engines(server, stopped))
        async with client_of(server) as client:
            asking = [asyncio.create_task(ask(client, prompt)) for prompt in prompts]
            await asyncio.sleep(0.2)
            poison = asyncio.create_task(ask(client, [1, 2, DEADLY]))
            for prompt, reply in zip(prompts, await asyncio.gather(*asking), strict=True):
                assert_whole(prompt, reply)
            assert_convicted(await poison)
            assert_whole([5, 6], await ask(client, [5, 6]))
        stopped.set()
        assert await counting <= 2 + 2, "a death in the beginning, and one for every halving"
        server.until_idle()


async def test_poison_that_comes_alone_ends_no_server(tmp_path: Path) -> None:
    """More often than engines may end by themselves. It acts in the middle of an output."""
    faults = {"deadly": DEADLY, "deadly_length": 20}
    with hash_server(tmp_path, {"max_engine_restarts": 1}, step_seconds=STEP, **faults) as server:
        async with client_of(server) as client:
            for _ in range(2):
                assert_convicted(await ask(client, [1, 2, DEADLY]))
            assert_whole([5, 6], await ask(client, [5, 6]))
        server.until_idle()


def test_a_line_of_a_batch_that_kills_the_engine_gets_an_error(tmp_path: Path) -> None:
    """There is no second start of the server: the first one finds the line."""
    requests = [request(number, 4) for number in range(4)]
    requests[2]["body"]["prompt"] = [1, 2, DEADLY]
    settings = {"state_dir": str(tmp_path / "state"), "max_engine_restarts": 1}
    with hash_server(tmp_path, settings, step_seconds=STEP, deadly=DEADLY) as server, sdk(server) as client:
        ended = wait(client, begin(client, requests))
        assert (ended.status, count_done(ended)) == ("completed", 4)
        output, errors = lines(client, ended.output_file_id), lines(client, ended.error_file_id)
        assert len(output) == 3
        check_answers(requests, output)
        assert errors.keys() == {"r2"}
        response = errors["r2"]["response"]
        assert (response["status_code"], response["body"]["error"]["code"]) == (500, "engine_killed_by_request")
