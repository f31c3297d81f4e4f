"""/debug/trace of a real engine."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tests.integration.metrics.conftest import Watched
from tests.unit.metrics.test_timeline import check_format

LONG = {"prompt": "to be or not to be", "ignore_eos": True, "temperature": 0.0}


async def test_a_trace_tells_what_the_engine_did(watched: Watched) -> None:
    counts = (3, 20, 40, 50)
    await asyncio.gather(*(watched.http.post("/v1/completions", json={**LONG, "max_tokens": count}) for count in counts))
    async with watched.http.stream("POST", "/v1/completions", json={**LONG, "max_tokens": 150, "stream": True}) as running:
        await anext(running.aiter_lines())
        reply = await watched.http.get("/debug/trace", params={"seconds": 60})
    assert reply.headers["content-type"] == "application/json"
    trace = reply.json()
    check_format(trace)
    events = trace["traceEvents"]

    steps = [one for one in events if one["ph"] == "X" and one["name"].startswith("step ")]
    numbers = [one["args"]["step"] for one in steps]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    for before, after in pairwise(steps):
        assert before["ts"] + before["dur"] <= after["ts"] + 0.01, "steps run one after another"
    assert all(one["args"]["rows"] >= 1 for one in steps)

    requests = [one["args"] for one in events if one["ph"] == "b" and one["args"]]
    finished = sorted(one["output_tokens"] for one in requests if one["outcome"] == "length")
    running_still = [one["outcome"] for one in requests if one["outcome"] != "length"]
    assert (finished, running_still) in (
        (list(counts), ["active"]),
        ([*counts, 150], []),  # a neighbour held this process up until the last one had ended too
    )
    sampled = sum(one["output_tokens"] for one in requests)
    assert sampled <= sum(one["args"]["rows"] for one in steps) + 4, "every token is some step's"
    assert sampled > 60
    rows = [one["args"]["rows"] for one in events if one["ph"] == "C" and one["name"] == "rows"]
    assert max(rows) == max(one["args"]["rows"] for one in steps) >= 2  # the one of 3 tokens may have ended before others came


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon", "601"])
async def test_seconds_must_make_sense(watched: Watched, seconds: str) -> None:
    reply = await watched.http.get("/debug/trace", params={"seconds": seconds})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "seconds")
