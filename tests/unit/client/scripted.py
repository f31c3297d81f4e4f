"""A transport that answers by a script, and records what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

BROKEN = httpx.ReadError("broken")


@dataclass
class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Pieces of a body; an exception among them breaks it off."""

    pieces: tuple[bytes | Exception, ...]
    closed: int = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


def answer(*pieces: bytes | Exception, status: int = 200, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, headers=named, stream=Body(pieces))


def replay(*pieces: bytes | Exception) -> httpx.Response:
    return answer(*pieces, idempotency_replayed="true")


@dataclass
class Script(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Outcomes, one a request; of an Event, an answer once it is set."""

    outcomes: list[Any]
    requests: list[httpx.Request] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    cancelled: int = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, httpx.Response)
        return outcome

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.outcomes and isinstance(self.outcomes[0], asyncio.Event):
            self.requests.append(request)
            try:
                await self.outcomes.pop(0).wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return answer(b"late")
        return self.handle_request(request)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def asleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    @property
    def keys(self) -> list[str | None]:
        return [request.headers.get("idempotency-key") for request in self.requests]
