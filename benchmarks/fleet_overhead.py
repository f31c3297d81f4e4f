"""What an ingress adds: one replica behind it beside one server, the same flags, asked in turns in one run."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

import httpx

from benchmarks import servers
from benchmarks.fleet_streams import Stream, prompts, read_all

SETTINGS = {"model": "pico", "max-model-len": 512, "max-num-seqs": 16}
STREAMS = (1, 16)


def overhead(rounds: int, length: int) -> list[dict[str, Any]]:
    """TTFT and tokens a second of both, for each number of streams."""
    flags = [word for name, value in SETTINGS.items() if name != "model" for word in (f"--{name}", str(value))]
    with servers.ready([str(SETTINGS["model"]), *flags]) as single, servers.fleet(SETTINGS, 1) as fleet:
        return asyncio.run(_overhead({"single": single.http, "fleet": fleet.http}, rounds, length))


async def _overhead(addresses: dict[str, str], rounds: int, length: int) -> list[dict[str, Any]]:
    clients = {name: httpx.AsyncClient(base_url=address) for name, address in addresses.items()}
    found = []
    for count in STREAMS:
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
        for number in range(rounds + 1):
            for name in clients if number % 2 else reversed(clients):
                times = await _round(clients[name], count, length)
                if number:  # the first one warms up
                    seen[name].append(times)
        found.append(_compared(count, seen))
    for client in clients.values():
        await client.aclose()
    return found


async def _round(client: httpx.AsyncClient, count: int, length: int) -> tuple[float, float]:
    """Median seconds to the first token, and tokens a second of all."""
    streams = [Stream() for _ in range(count)]
    seconds = await read_all(client, prompts(count), length, streams)
    firsts = [stream.first for stream in streams if stream.first is not None]
    if len(firsts) < count:
        raise RuntimeError(f"a stream broke: {next(stream.ended for stream in streams if stream.first is None)}")
    return statistics.median(firsts), count * length / seconds


def _compared(count: int, seen: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    ttft = {name: statistics.median(first for first, _ in times) for name, times in seen.items()}
    rate = {name: statistics.median(tokens for _, tokens in times) for name, times in seen.items()}
    return {
        "streams": count,
        "rounds": len(seen["single"]),
        "ttft_ms": {name: round(1e3 * value, 1) for name, value in ttft.items()},
        "ttft_added_ms": round(1e3 * (ttft["fleet"] - ttft["single"]), 1),
        "tokens_per_s": {name: round(value) for name, value in rate.items()},
        "throughput_ratio": round(rate["fleet"] / rate["single"], 3),
    }
