"""Processes that do not come up."""

from __future__ import annotations

import asyncio
import logging

import pytest

from jaxserve.children import Backoff
from server.processes.keeper import Keeper, Recipe

PATIENCE = 60.0


class AtOnce(Backoff):
    """Counts failures, and nobody waits."""

    def failed(self, lasted: float) -> int:
        count = super().failed(lasted)
        self.seconds = 0.0
        return count


async def test_one_that_does_not_come_up_beside_an_engine_is_started_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.processes.keeper.Backoff", AtOnce)
    specs = [b"ready", b"", b"", b"ready"]
    gone: list[str] = []
    started: list[int] = []

    def recipe(number: int) -> Recipe:
        started.append(number)
        return Recipe(f"0.{number}", specs[number], (), {})

    keeper = Keeper(
        "front end",
        "tests.support.slow_child",
        recipe,
        serve=lambda name, request: None,
        engine_up=lambda: not specs[started[-1]],  # those that come up may take as long as they like
        on_gone=lambda name, process_id: gone.append(name),
        start_seconds=0.01,
    )
    with caplog.at_level(logging.ERROR, "server.processes.keeper"):
        running = asyncio.create_task(keeper.run())
        try:
            async with asyncio.timeout(PATIENCE):
                await keeper.ready.wait()
                assert keeper._child is not None
                keeper._child.process.kill()
                while gone != ["0.0", "0.1", "0.2"] or not keeper._up:
                    await asyncio.sleep(0.02)
        finally:
            await keeper.kill()
            await running
    late = [record.getMessage() for record in caplog.records if "is not ready after" in record.getMessage()]
    assert [message.split()[2] for message in late] == ["0.1", "0.2"]


async def test_none_is_killed_for_waiting_for_the_engine() -> None:
    looks = 0

    def engine_up() -> bool:
        nonlocal looks
        looks += 1
        return False

    keeper = Keeper(
        "front end",
        "tests.support.slow_child",
        lambda number: Recipe(f"0.{number}", b"", (), {}),
        serve=lambda name, request: None,
        engine_up=engine_up,
        on_gone=lambda name, process_id: None,
        start_seconds=0.1,
    )
    keeper.ready.set()  # as if one had been
    running = asyncio.create_task(keeper.run())
    try:
        async with asyncio.timeout(PATIENCE):
            while looks < 3:
                await asyncio.sleep(0.02)
        assert keeper._child is not None
        assert keeper._child.process.returncode is None
    finally:
        await keeper.kill()
        await running
