"""Engines for a Ray cluster that start at once: they say prompts back, and die where a prompt says so."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from jaxserve.errors import EngineDeadError, QueueFullError
from jaxserve.jobs.answers import Answer
from jaxserve.jobs.lines import Line


class RemoteEcho:
    """A body may hold `dies`, a file: an engine that is asked dies unless the file is there, which it makes before."""

    def __init__(self) -> None:
        self.ended = False
        self._refused: set[int] = set()

    async def answer(self, line: Line) -> Answer:
        if self.ended:
            raise EngineDeadError("it has ended")
        if "dies" in line.body and not Path(line.body["dies"]).exists():
            Path(line.body["dies"]).touch()
            raise EngineDeadError("the request killed it")
        if line.number % 10 == 0 and line.number not in self._refused:
            self._refused.add(line.number)
            raise QueueFullError("too many", retry_after=0.01)
        await asyncio.sleep(0.05)
        return Answer(200, str(os.getpid()), {"choices": [{"text": line.body["prompt"]}]})


@asynccontextmanager
async def remote_echo() -> AsyncIterator[RemoteEcho]:
    echo = RemoteEcho()
    try:
        yield echo
    finally:
        echo.ended = True


@asynccontextmanager
async def no_engine() -> AsyncIterator[RemoteEcho]:
    raise RuntimeError("no such model")
    yield
