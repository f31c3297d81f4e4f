"""Overload: requests arrive whatever the server does, and goodput, refusals and resets are told apart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.load.arrivals import Asked, Objective, Place, closed_loop, figures, open_loop, recovered, send
from benchmarks.overload import kept, peak, table
from benchmarks.peers.clients import Stream
from benchmarks.peers.engines import free_port
from benchmarks.peers.hosting import Put, serve
from benchmarks.peers.workloads import Request

OBJECTIVE = Objective(ttft=1.0, tpot=0.25)


class _Counting:
    """An engine that counts."""

    def submit(self, prompt: list[int], count: int, put: Put) -> None:
        put([100])
        put(range(101, 100 + count))


@pytest.fixture(scope="module")
def place() -> Place:
    port = free_port()
    threading.Thread(target=serve, args=(_Counting(), port), daemon=True).start()
    place = Place(f"http://127.0.0.1:{port}", {"model": "any"}, patience=30.0)
    assert asyncio.run(recovered(place, 30.0)) is not None
    return place


async def test_loads(place: Place) -> None:
    made = await open_loop(place, rate=40.0, seconds=0.5, seed=0)
    assert len(made) == 20
    assert {asked.error for asked in made} == {""}
    assert len({asked.stream.due for asked in made}) == 20
    assert all(asked.sent >= asked.stream.due for asked in made), "nothing is sent before it arrives"
    assert await closed_loop(place, clients=2, seconds=0.5) > 0


@asynccontextmanager
async def answering(reply: bytes) -> AsyncIterator[Place]:
    """A server that says this to whatever is sent, and leaves."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)
            await writer.drain()
        except asyncio.IncompleteReadError:  # the client left first
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield Place(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {}, patience=30.0)


REFUSAL = b'{"error": {"code": "overloaded"}}'
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\n\r\n%s" % (len(REFUSAL), REFUSAL)
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ndata: "
EXPIRED = b'data: {"error": {"code": "deadline_exceeded"}}\n\n'
LATE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(EXPIRED), EXPIRED)


@pytest.mark.parametrize(
    ("reply", "error", "counted"),
    [
        (REFUSED, "503 overloaded", {"refused": 1, "network_errors": 0}),
        (CUT, "network: ", {"refused": 0, "network_errors": 1}),
        (b"", "network: ", {"refused": 0, "network_errors": 1}),
        (LATE, "200 deadline_exceeded", {"refused": 0, "network_errors": 0}),
    ],
)
async def test_what_goes_wrong_is_told_apart(reply: bytes, error: str, counted: dict[str, int]) -> None:
    async with answering(reply) as place:
        asked = Asked(Stream(Request([5], 4)))
        await send(place, asked)
    assert asked.error.startswith(error)
    found = figures([asked], 60.0, OBJECTIVE)
    assert {name: found[name] for name in counted} == counted
    assert (found["answered"], found["goodput"], found["gave_up"]) == (0, 0.0, 0)
    assert bool(found["refusal_s"]) == bool(counted["refused"])


async def test_clients_have_patience_and_an_end(place: Place) -> None:
    asked = Asked(Stream(Request([5], 4)))
    await send(Place(place.url, {}, patience=0.0), asked)
    assert asked.error == "gave up"
    assert figures([asked], 60.0, OBJECTIVE)["gave_up"] == 1


def asked(first: float, last: float, tokens: int = 11, **fields: Any) -> Asked:
    stream = Stream(Request([5], tokens), 10.0, [(first, 1), (last, tokens)], last, "", tokens)
    return Asked(stream, sent=10.001, ended=last, status=200, **fields)


def test_goodput_is_what_keeps_both_limits() -> None:
    good, slow_start, slow_stream = asked(10.9, 13.0), asked(11.1, 12.0), asked(10.5, 13.1)
    assert [one.keeps(OBJECTIVE) for one in (good, slow_start, slow_stream)] == [True, False, False]
    broken = asked(10.9, 13.0, error="200 cut off")
    found = figures([good, good, slow_start, slow_stream, broken], 4.0, OBJECTIVE)
    assert found["goodput"] == 0.5
    assert (found["asked"], found["answered"], found["in_time"]) == (5, 4, 3)
    assert found["errors"] == {"200 cut off": 1}
    assert found["lag_s"]["max"] == 0.001


def load(
    factor: float, goodput: float, refusal: float = 0.05, network_errors: int = 0, engine: str = "jaxserve"
) -> dict[str, Any]:
    errors = {"503 overloaded": 3, "200 deadline_exceeded": 2}
    made: dict[str, Any] = {"engine": engine, "factor": factor, "rate": 4 * factor, "goodput": goodput, "errors": errors}
    made |= {"ttft_s": {"p50": 0.2, "p99": 0.9}, "refusal_s": {"p50": 0.01, "p99": 0.02, "max": refusal}, "refused": 3}
    return made | {"gave_up": 0, "network_errors": network_errors, "lag_s": {"p99": 0.002}, "cores": {"clients": 0.1}}


def test_what_is_kept_and_the_table() -> None:
    report = {"loads": [load(1, 4.0), load(4, 3.7), load(10, 3.5, 0.2), load(1, 9.0, engine="vllm")]}
    assert peak(report, "jaxserve") == 4.0
    assert [line.partition(":")[0] for line in kept(report)] == ["holds"] * 5 + ["DOES NOT HOLD"] * 2 + ["holds"]
    lines = table(report).splitlines()[2:]
    assert [line.split(" | ")[4] for line in lines] == ["100%", "92%", "88%", "100%"]
    assert {line.split(" | ")[13] for line in lines} == {"2"}
