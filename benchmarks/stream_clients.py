"""Clients of a paced server, in a process of their own: `python -m benchmarks.stream_clients JSON` prints JSON.

A closed loop: each client asks for its next stream when its last one has ended. What comes is only kept with its time, and read
when the measurement is over, so that the clients cost as little as they can.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field

import grpc
import numpy as np
import numpy.typing as npt
import psutil
import uvloop

from benchmarks.paced_engine import MODEL, VOCABULARY, seconds_since, token_of
from jaxserve.load.connection import Connections
from jaxserve.proto import inference_pb2 as pb

_TEXT = re.compile(rb'"text":"((?: [a-z2-7]{3})+)"')
_EVENT = b"data: "
_GENERATE = "/jaxserve.v1.Inference/Generate"  # messages stay bytes
_CHANNELS = 16  # gRPC connections: several front ends share a port by connection
_START_SECONDS = 60.0
_POLL_SECONDS = 0.05
_PROMPT = 16


@dataclass(frozen=True, slots=True)
class Task:
    """What to do.

    Attributes:
        surface: "http" or "grpc".
        address: base URL, or host and port.
        streams: clients.
        output_tokens: of each stream.
        warm_up, seconds: how long streams run before the measurement, and how long that takes.
        processes: those to watch: process ids by name.
    """

    surface: str
    address: str
    streams: int
    output_tokens: int
    warm_up: float
    seconds: float
    processes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Seen:
    """What clients saw within the measurement.

    Attributes:
        seconds: how long it took.
        events, tokens: that came.
        ended: streams that came to their end.
        late: seconds from the end of a token's step to its arrival: percentiles by name.
        gaps: seconds between the arrivals of two tokens of a stream that did not come in one piece: percentiles by name.
        cores: of each process, the clients' own too: cores that it kept busy.
        memory: of each process: resident bytes before the first stream and at the end.
    """

    seconds: float
    events: int
    tokens: int
    ended: int
    late: dict[str, float]
    gaps: dict[str, float]
    cores: dict[str, float]
    memory: dict[str, tuple[int, int]]


@dataclass(slots=True)
class _Client:
    """What came to one client: pieces with their time of the monotonic clock, and the times at which streams ended."""

    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)


Stream = Callable[[_Client, int], Awaitable[None]]


async def _measure(task: Task) -> Seen:
    processes = {name: psutil.Process(pid) for name, pid in {**task.processes, "clients": os.getpid()}.items()}
    before = {name: process.memory_info().rss for name, process in processes.items()}
    clients = [_Client() for _ in range(task.streams)]
    ask, close = _http(task) if task.surface == "http" else _grpc(task)

    async def run(number: int) -> None:
        while True:
            await ask(clients[number], number)
            clients[number].ends.append(time.monotonic())

    running = [asyncio.create_task(run(number)) for number in range(task.streams)]
    deadline = time.monotonic() + _START_SECONDS
    while not all(client.pieces for client in clients):
        _check(running)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{sum(not client.pieces for client in clients)} streams have not begun")
        await asyncio.sleep(_POLL_SECONDS)
    await asyncio.sleep(task.warm_up)
    busy, began = _busy(processes), time.monotonic()
    await asyncio.sleep(task.seconds)
    ended = time.monotonic()
    cores = {name: (now - busy[name]) / (ended - began) for name, now in _busy(processes).items()}
    memory = {name: (before[name], process.memory_info().rss) for name, process in processes.items()}
    _check(running)
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await close()
    return _seen(task, clients, (began, ended), cores, memory)


def _check(running: Sequence[asyncio.Task[None]]) -> None:
    """Raise what a client failed with: a stream that breaks makes every figure wrong."""
    for one in running:
        if one.done():
            one.result()


def _busy(processes: dict[str, psutil.Process]) -> dict[str, float]:
    """Seconds of CPU so far."""
    times = {name: process.cpu_times() for name, process in processes.items()}
    return {name: time.user + time.system for name, time in times.items()}


def _prompt(number: int) -> list[int]:
    return [(number + place) % VOCABULARY for place in range(_PROMPT)]


def _http(task: Task) -> tuple[Stream, Callable[[], Awaitable[None]]]:
    connections = Connections(task.address)
    headers = {"Content-Type": "application/json"}
    offset = time.monotonic() - time.perf_counter()

    async def ask(client: _Client, number: int) -> None:
        body = {
            "model": MODEL,
            "prompt": _prompt(number),
            "max_tokens": task.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        keep = client.pieces.append
        reply = await connections.exchange(
            "POST", "/v1/completions", headers, json.dumps(body).encode(), lambda piece, now: keep((now + offset, piece))
        )
        if reply.status != 200 or not client.pieces[-1][1].endswith(b"[DONE]\n\n"):
            raise RuntimeError(f"status {reply.status}: {client.pieces[-1:]}")

    async def close() -> None:
        connections.close()

    return ask, close


def _grpc(task: Task) -> tuple[Stream, Callable[[], Awaitable[None]]]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(task.address, options=options) for _ in range(min(_CHANNELS, task.streams))]
    methods = [channel.unary_stream(_GENERATE, None, None) for channel in channels]

    async def ask(client: _Client, number: int) -> None:
        request = pb.GenerateRequest(
            tokens=pb.TokenIds(ids=_prompt(number)),
            sampling=pb.Sampling(temperature=0.0),
            stopping=pb.Stopping(max_tokens=task.output_tokens, ignore_eos=True),
        )
        keep = client.pieces.append
        async for message in methods[number % len(methods)](request.SerializeToString()):
            keep((time.monotonic(), message))

    async def close() -> None:
        for channel in channels:
            await channel.close(None)

    return ask, close


def _seen(
    task: Task,
    clients: Sequence[_Client],
    window: tuple[float, float],
    cores: dict[str, float],
    memory: dict[str, tuple[int, int]],
) -> Seen:
    began, ended = window
    read = http_tokens if task.surface == "http" else grpc_tokens
    late: list[float] = []
    gaps: list[npt.NDArray[np.float64]] = []
    events = 0
    for client in clients:
        arrivals: list[float] = []
        for when, piece in client.pieces:
            if not began <= when < ended:
                continue
            count, tokens = read(piece)
            events += count
            late += [seconds_since(token, when) for token in tokens]
            arrivals += [when] if tokens else []
        gaps.append(np.diff(arrivals))
    return Seen(
        seconds=ended - began,
        events=events,
        tokens=len(late),
        ended=sum(began <= when < ended for client in clients for when in client.ends),
        late=_percentiles(np.array(late)),
        gaps=_percentiles(np.concatenate(gaps)),
        cores=cores,
        memory=memory,
    )


def http_tokens(piece: bytes) -> tuple[int, list[int]]:
    """Events of a piece of the body, and the tokens of their texts."""
    tokens = [token_of(text[at : at + 4]) for text in _TEXT.findall(piece) for at in range(0, len(text), 4)]
    return piece.count(_EVENT), tokens


def grpc_tokens(message: bytes) -> tuple[int, list[int]]:
    """One event, and its tokens."""
    return 1, list(pb.GenerateEvent.FromString(message).delta.token_ids)


def _percentiles(values: npt.NDArray[np.float64]) -> dict[str, float]:
    if not len(values):
        return {}
    return {f"p{rank}": float(np.percentile(values, rank)) for rank in (5, 50, 90, 99)}


def main(arguments: str) -> None:
    """Do the task and print what was seen."""
    gc.disable()  # for seconds only, and what is kept has no cycles
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seen = runner.run(_measure(Task(**json.loads(arguments))))
    sys.stdout.write(json.dumps(asdict(seen)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
