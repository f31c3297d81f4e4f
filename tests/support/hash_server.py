"""Servers in a thread in front of a hash engine, for clients that block: quick, and everything but the model is real."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from jaxserve.clock import RealClock
from jaxserve.engine.build import BuiltEngine, EngineReport, MemoryLedger
from jaxserve.engine.intake import Intake
from jaxserve.engine.local import LocalEngine
from jaxserve.tokenizer.chat import ChatTemplate
from tests.support.hash_engine import PAGE, parts, tools_of
from tests.support.serving import serving


@asynccontextmanager
async def local_hash_engine(checkpoint: Path, **argument: Any) -> AsyncIterator[LocalEngine]:
    """An engine in this event loop, with the checkpoint's tokenizer and chat template."""
    core, description = parts({"tokenizer": str(checkpoint), **argument})
    tokenizer = tools_of(description).tokenizer
    report = EngineReport(description.model, "int32", "none", PAGE, MemoryLedger(0, 0, 0, 0), (), 0.0, 0.0)
    intake = Intake.by_rules(tokenizer, description.rules, "")
    built = BuiltEngine(core, intake, tokenizer, ChatTemplate.load(checkpoint), report, RealClock())
    engine = LocalEngine(built, tokenizer, asyncio.get_running_loop())
    engine.run()
    try:
        yield engine
    finally:
        await engine.drain(0.0)


@contextmanager
def hash_server(checkpoint: Path, **argument: Any) -> Iterator[str]:
    """Its base URL."""
    started, urls = threading.Event(), list[str]()
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        async with local_hash_engine(checkpoint, **argument) as engine, serving(engine) as servers:
            end = asyncio.Event()
            urls.append(servers.http)
            stop.append((asyncio.get_running_loop(), end))
            started.set()
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="hash-server")
    thread.start()
    try:
        assert started.wait(30)
        yield urls[0]
    finally:
        for loop, end in stop:
            loop.call_soon_threadsafe(end.set)
        thread.join(30)
