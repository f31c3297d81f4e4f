"""Sends a workload: open loop at the arrival times, whatever the server does, or closed loop with so many clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

from jaxserve.load.outcome import RequestOutcome
from jaxserve.load.settings import LoadConfig
from jaxserve.load.target import Served, Target
from jaxserve.workload.requests import WorkloadRequest
from jaxserve.workload.settings import WorkloadConfig

# Statuses that say: not now. Everything else is the answer.
_REFUSALS = (429, 503)

Done = Callable[[RequestOutcome], None]
"""Told after every request."""


class Run:
    """One measurement.

    Args:
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
            await self._target.complete(
                self._served.model, self._prompts.tokens(warming), RequestOutcome(warming, time.perf_counter())
            )

    async def open_loop(self, requests: Iterator[WorkloadRequest]) -> list[RequestOutcome]:
        start = time.perf_counter()
        tasks: list[asyncio.Task[RequestOutcome]] = []
        for request in requests:
            due = start + request.arrival
            tokens = self._prompts.tokens(request)  # before it is due
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self._send(request, tokens, due)))
        return list(await asyncio.gather(*tasks))

    async def closed_loop(self, requests: Iterator[WorkloadRequest], clients: int) -> list[RequestOutcome]:
        outcomes: list[RequestOutcome] = []

        async def client() -> None:
            for request in requests:
                outcomes.append(await self._send(request, self._prompts.tokens(request), time.perf_counter()))

        await asyncio.gather(*(client() for _ in range(clients)))
        return outcomes

    async def _send(self, request: WorkloadRequest, tokens: list[int], due: float) -> RequestOutcome:
        """Send until it is not refused any more, or its client gives up."""
        outcome = RequestOutcome(request, due)
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


class Prompts:
    """Prompts of token ids that ordinary text has, so that any tokenizer and server will do; the same ones in every run.

    Args:
        vocabulary: token ids to choose from, at least one.
        seed: of the run.
    """

    def __init__(self, vocabulary: Sequence[int], seed: int) -> None:
        self._vocabulary = vocabulary
        self._seed = seed

    def tokens(self, request: WorkloadRequest) -> list[int]:
        """As many ids as the request's prompt has tokens; requests of one prefix begin alike and differ after it."""
        shared: list[int] = []
        if request.prefix is not None:
            shared = self._draw(f"prefix {request.prefix}", request.prefix_tokens)
        return shared + self._draw(f"request {request.number}", request.prompt_tokens - len(shared))

    def _draw(self, what: str, count: int) -> list[int]:
        return Random(f"{self._seed} {what}").choices(self._vocabulary, k=count)
