"""Sends a workload: open loop at the arrival times, whatever the server does, or closed loop with so many clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from jaxserve.load.outcome import Outcome
from jaxserve.load.prompts import Prompts
from jaxserve.load.settings import LoadConfig
from jaxserve.load.target import Served, Target
from jaxserve.workload.requests import WorkloadRequest
from jaxserve.workload.settings import WorkloadConfig

# Statuses that say: not now. Everything else is the answer.
_REFUSALS = (429, 503)

Done = Callable[[Outcome], None]
"""Told after every request."""


class Run:
    """One measurement.

    Args:
        target: the server.
        served: what it serves.
        load: how to send.
        workload: how refused requests come back, and the seed of prompts.
        done: told after every request.
    """

    def __init__(self, target: Target, served: Served, load: LoadConfig, workload: WorkloadConfig, done: Done) -> None:
        self._target = target
        self._served = served
        self._load = load
        self._workload = workload
        self._prompts = Prompts(served.vocabulary, workload.seed)
        self._done = done

    async def warm(self, request: WorkloadRequest) -> None:
        """Send the request some times, one after another, each with a prompt of its own."""
        for number in range(self._load.warmup):
            warming = replace(request, number=-1 - number, prefix=None, prefix_tokens=0)
            await self._target.complete(self._served.model, self._prompts.tokens(warming), Outcome(warming, time.perf_counter()))

    async def open_loop(self, requests: Iterator[WorkloadRequest]) -> list[Outcome]:
        """Every request at its time."""
        start = time.perf_counter()
        tasks: list[asyncio.Task[Outcome]] = []
        for request in requests:
            due = start + request.arrival
            tokens = self._prompts.tokens(request)  # before it is due
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self._send(request, tokens, due)))
        return list(await asyncio.gather(*tasks))

    async def closed_loop(self, requests: Iterator[WorkloadRequest], clients: int) -> list[Outcome]:
        """The requests in their order, each by the first client that is free."""
        outcomes: list[Outcome] = []

        async def client() -> None:
            for request in requests:
                outcomes.append(await self._send(request, self._prompts.tokens(request), time.perf_counter()))

        await asyncio.gather(*(client() for _ in range(clients)))
        return outcomes

    async def _send(self, request: WorkloadRequest, tokens: list[int], due: float) -> Outcome:
        """Send until it is not refused any more, or its client gives up."""
        outcome = Outcome(request, due)
        while True:
            reply = await self._target.complete(self._served.model, tokens, outcome)
            if reply is None or reply.status not in _REFUSALS or outcome.retries >= self._workload.retries:
                break
            wait = self._workload.backoff_s * 2.0**outcome.retries
            outcome.retries += 1
            await asyncio.sleep(max(wait, _seconds(reply.headers.get("retry-after", ""))))
        self._done(outcome)
        return outcome


def _seconds(value: str) -> float:
    """Retry-After as seconds; its other form, a date, is not what servers of models send."""
    return float(value) if value.isdecimal() else 0.0
