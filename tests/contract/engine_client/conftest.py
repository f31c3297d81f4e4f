"""The engine clients: over a thread of this process, over another process, and over a fleet of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from jaxserve.clock import RealClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.engine.build import BuiltEngine, EngineReport, MemoryLedger
from jaxserve.engine.client import EngineClient
from jaxserve.engine.intake import Intake
from jaxserve.engine.local import LocalEngine
from jaxserve.engine.phases import NO_TIMES
from jaxserve.engine.replicas.fleet import FleetSettings
from tests.support.hash_engine import PAGE, engine_fleet, parts, remote_engine, tools_of
from tests.support.tiny_checkpoint import write_tiny_checkpoint

Start = Callable[..., AbstractAsyncContextManager[EngineClient]]


@asynccontextmanager
async def local(**argument: Any) -> AsyncIterator[EngineClient]:
    core, description = parts(argument)
    tools = tools_of(description)
    report = EngineReport(description.model, "int32", "none", PAGE, MemoryLedger(0, 0, 0, 0), SchedulerConfig(), (), NO_TIMES)
    intake = Intake.by_rules(tools.tokenizer, description.rules, "")
    built = BuiltEngine(core, intake, tools.tokenizer, None, report, RealClock())
    engine = LocalEngine(built, tools.tokenizer, asyncio.get_running_loop())
    engine.run()
    try:
        yield engine
    finally:
        await engine.drain(0.0)


@asynccontextmanager
async def remote(**argument: Any) -> AsyncIterator[EngineClient]:
    async with remote_engine(**argument) as engine:
        client = await engine.connect()
        try:
            yield client
        finally:
            await client.drain(0.0)


@asynccontextmanager
async def fleet(**argument: Any) -> AsyncIterator[EngineClient]:
    patience = (0.7, 5.0) if "hangs_at" in argument else (60.0, 0.5)  # one that hangs is left for the other, which hangs as well
    settings = FleetSettings(hang_seconds=patience[0], wait_seconds=patience[1])
    async with engine_fleet(2, settings, **argument) as engines:
        yield engines.front


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module", params=[local, remote, fleet], ids=lambda way: way.__name__)
def start(request: pytest.FixtureRequest, tokenizer_path: str) -> Start:
    """Starts an engine of its own for a test, with faults if wanted."""

    def start(**argument: Any) -> AbstractAsyncContextManager[EngineClient]:
        started: AbstractAsyncContextManager[EngineClient] = request.param(tokenizer=tokenizer_path, **argument)
        return started

    return start


@pytest.fixture(scope="module")
async def client(start: Start) -> AsyncIterator[EngineClient]:
    """One engine for the tests that leave it as it was."""
    async with start(max_waiting=100) as client:
        yield client
