"""After all clients came at once, some of them to leave early or to be refused: nothing is lost, and the bill is right."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.support.hash_server import until
from tests.support.serve_process import Served
from tests.system.interop import mixed_clients
from tests.system.interop.conftest import Gated, gated

EXACTLY = {
    "openai": mixed_clients.openai_sdk,
    "late": mixed_clients.late,
    "repeats": mixed_clients.repeats,
    "refused": mixed_clients.refused,
    "impatient": mixed_clients.impatient,
    "anthropic": mixed_clients.anthropic_sdk,
    "grpc": mixed_clients.grpc_client,
    "triton": mixed_clients.triton,
    "litellm": mixed_clients.litellm,
}
AT_LEAST = {"leavers": mixed_clients.leavers, "grpc-leavers": mixed_clients.grpc_leavers}
MOST_OF_LEAVERS = {"leavers": 7 * 400, "grpc-leavers": 4 * 400}


@pytest.mark.parametrize("front_ends", [pytest.param(1, marks=pytest.mark.extended), 2])  # two: whatever one does, and more
async def test_requests_are_conserved_and_the_bill_is_what_was_delivered(served: Served, tmp_path: Path, front_ends: int) -> None:
    tenants = dict.fromkeys((*EXACTLY, *AT_LEAST, "lm-eval"), "")
    with gated(served, tmp_path, tenants, "--frontends", str(front_ends)) as server:
        clients = {**EXACTLY, **AT_LEAST}
        tasks = [client(server) for client in clients.values()]
        counts = await asyncio.gather(*tasks, mixed_clients.lm_eval(server, tmp_path))
        got = dict(zip((*clients, "lm-eval"), counts, strict=True))
        await asyncio.to_thread(until, lambda: sum_of(server, "requests_active", "kv_cache_usage_perc") == 0)
        generated = everything_is_accounted_for(server)
        assert await asyncio.to_thread(server.process.stop) == 0
        billed = bill(server)
    assert {name: billed[name] for name in got if name not in AT_LEAST} == {
        name: count for name, count in got.items() if name not in AT_LEAST
    }
    for name in AT_LEAST:
        assert 0 < got[name] <= billed[name] <= MOST_OF_LEAVERS[name]
    assert billed.total() <= generated


def sum_of(server: Gated, *names: str) -> float:
    return sum(value for (name, _), value in server.metrics().items() if name in names)


def everything_is_accounted_for(server: Gated) -> float:
    """Output tokens that were made, once the numbers add up."""
    seen: Counter[str] = Counter()
    for (name, _), value in server.metrics().items():
        seen[name] += int(value)
    ended = [seen[f"requests_{fate}_total"] for fate in ("finished", "aborted", "rejected")]
    assert all(ended)
    assert seen["requests_received_total"] == sum(ended)
    busy = ("num_requests_running", "num_requests_waiting", "active_streams", "usage_tokens_lost_total", "process_restarts_total")
    assert {name: seen[name] for name in busy} == dict.fromkeys(busy, 0)
    assert seen["engine_up"] == 1
    return seen["generation_tokens_total"]


def bill(server: Gated) -> Counter[str]:
    """Output tokens by tenant; every sequence has exactly one last line."""
    events = server.billed()
    lines = Counter((event["completion_id"], event["prompt"], event["index"]) for event in events if event["final"])
    assert set(lines.values()) == {1}
    assert len(lines) == len({(event["completion_id"], event["prompt"], event["index"]) for event in events})
    billed: Counter[str] = Counter()
    for event in events:
        billed[event["tenant"]] += event["completion_tokens"]
    return billed
