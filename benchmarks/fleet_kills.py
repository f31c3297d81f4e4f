"""An engine of a fleet is killed under streams, again and again: what their clients see, and how long it takes to be replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import psutil

from benchmarks import servers
from benchmarks.fleet_streams import Stream, metric, prompts, read_all

REPLICAS = 2
# In bfloat16 one server's greedy text of a prompt can depend on how many others run beside it: a near tie is rounded both ways.
SETTINGS = {"model": "pico", "dtype": "float32", "max-model-len": 512, "max-num-seqs": 32, "drain-timeout": 2}
_ENGINE = "jaxserve.engine.remote.child"
_LOOK_SECONDS = 0.05
_NOTICE_SECONDS = 5.0
_STRENGTH_SECONDS = 300.0


def kills(times: int, streams: int, length: int) -> dict[str, Any]:
    """Kill one of two engines so many times, each time in the middle of streams."""
    with servers.fleet(SETTINGS, REPLICAS, {"router": "least_loaded"}) as one:
        return asyncio.run(_kills(one, times, streams, length))


async def _kills(one: servers.Started, times: int, streams: int, length: int) -> dict[str, Any]:
    texts, rounds = prompts(streams), []
    limits = httpx.Limits(max_connections=streams + 8)
    async with httpx.AsyncClient(base_url=one.http, limits=limits) as client:
        await _strong(client, time.monotonic())
        undisturbed = [Stream() for _ in texts]
        await read_all(client, texts, length, undisturbed)
        wanted = [stream.tokens for stream in undisturbed]
        for number in range(times):
            seen, engine, lost = [Stream() for _ in texts], _engines(one)[0], await metric(client, "fleet_lost_total")
            reading = asyncio.create_task(read_all(client, texts, length, seen))
            some = length * (1 + number % 4) // 8  # earlier and later ones; streams go on while they are looked at
            await _until(lambda: reading.done() or _middle(seen) >= some)  # noqa: B023 - this round's
            engine.kill()
            killed = time.monotonic()
            await reading
            await _noticed(client, lost)
            rounds.append({**_outcome(seen, wanted), "seconds_to_full_strength": round(await _strong(client, killed), 1)})
            print(f"kill {number + 1}: {rounds[-1]}", flush=True)
        hung = await metric(client, "fleet_hung_total")
    return {
        "kills": times,
        "streams": streams,
        "tokens": length,
        "whole": sum(one["whole"] for one in rounds),
        "resumed": sum(one["resumed"] for one in rounds),
        "failed": sum(one["failed"] for one in rounds),
        "different": sum(one["different"] for one in rounds),
        "undisturbed_failed": sum(stream.ended != "length" for stream in undisturbed),
        "taken_for_hung": hung,
        "seconds_to_full_strength": _spread([one["seconds_to_full_strength"] for one in rounds]),
        "rounds": rounds,
    }


def _outcome(seen: Sequence[Stream], wanted: Sequence[list[int]]) -> dict[str, Any]:
    failed = [stream.ended for stream in seen if stream.ended != "length"]
    different = [
        {
            "stream": number,
            "resumed": stream.resumed,
            "tokens": len(stream.tokens),
            "from": _first_difference(stream.tokens, tokens),
        }
        for number, (stream, tokens) in enumerate(zip(seen, wanted, strict=True))
        if stream.ended == "length" and stream.tokens != tokens
    ]
    return {
        "whole": sum(stream.ended == "length" for stream in seen),
        "resumed": sum(stream.resumed > 0 for stream in seen),
        "failed": len(failed),
        "different": len(different),
        **({"differences": different} if different else {}),
        **({"why": sorted({str(reason)[:200] for reason in failed})} if failed else {}),
    }


def _first_difference(tokens: Sequence[int], wanted: Sequence[int]) -> int:
    """The first place at which they are not the same."""
    return next((place for place, pair in enumerate(zip(tokens, wanted, strict=False)) if pair[0] != pair[1]), len(tokens))


def _middle(streams: Sequence[Stream]) -> int:
    """How far the middle one is."""
    return sorted(len(stream.tokens) for stream in streams)[len(streams) // 2]


def _engines(one: servers.Started) -> list[psutil.Process]:
    """Engine processes, the oldest first."""
    family = psutil.Process(one.popen.pid).children(recursive=True)
    return sorted(
        (child for child in family if any(_ENGINE in word for word in child.cmdline())), key=lambda child: child.create_time()
    )


async def _noticed(client: httpx.AsyncClient, lost: float) -> None:
    """Wait until the ingress knows: an engine that it took for hung before is not counted as lost."""
    deadline = time.monotonic() + _NOTICE_SECONDS
    while await metric(client, "fleet_lost_total") == lost and time.monotonic() < deadline:
        await asyncio.sleep(_LOOK_SECONDS)


async def _strong(client: httpx.AsyncClient, since: float) -> float:
    """Seconds until all engines take requests of the one front end."""
    while await metric(client, "fleet_replicas") < REPLICAS and time.monotonic() - since < _STRENGTH_SECONDS:
        await asyncio.sleep(_LOOK_SECONDS)
    return time.monotonic() - since


async def _until(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(_LOOK_SECONDS / 5)


def _spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"least": ordered[0], "median": ordered[len(ordered) // 2], "most": ordered[-1]}
