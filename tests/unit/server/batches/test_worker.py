"""Which batches begin, and what becomes of those that fail for the moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from jaxserve.clock import VirtualClock
from jaxserve.jobs.answers import Answer
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.lines import Line
from jaxserve.metrics.batches import BatchRecorder
from jaxserve.metrics.instruments import Instruments
from server.batches.answers import EngineAnswerer
from server.batches.records import FINAL, Batch, BatchStatus, NewBatch
from server.batches.running import BatchTools
from server.batches.store import Quotas, Store
from server.batches.turns import Load, Turns
from server.batches.worker import MOST, MOST_OF_A_TENANT, Worker, next_batches
from server.gateway.call import Call
from server.gateway.gateway import Gateway
from server.gateway.ledger import LedgerState, LocalUsageLedger


def batches(*owners: str) -> list[Batch]:
    """One of each, called by its place; the oldest first."""
    wanted = NewBatch(endpoint="/v1/completions", input_file_id="file-1", model="m")
    return [
        Batch(id=f"{place}", owner=owner, wanted=wanted, status=BatchStatus.VALIDATING, created_at=place, expires_at=10**6)
        for place, owner in enumerate(owners)
    ]


def ids(found: Sequence[Batch]) -> list[str]:
    return [batch.id for batch in found]


def test_the_oldest_of_each_tenant_begin_and_who_has_fewest_comes_first() -> None:
    assert ids(next_batches(batches("a", "a", "b", "a"), set())) == ["0", "2", "1", "3"]
    assert ids(next_batches(batches("a", "a", "b", "b"), {"0", "1"})) == ["2", "3"]


def test_a_tenant_has_a_few_side_by_side() -> None:
    many = batches(*"a" * 9, "b")
    assert ids(next_batches(many, set())) == ["0", "9", "1", "2", "3"]
    assert MOST_OF_A_TENANT == 4
    assert ids(next_batches(many, {"0", "1", "2", "3", "9"})) == []
    assert ids(next_batches(many, {"1", "2", "3", "9"})) == ["0"]


def test_all_together_are_bounded() -> None:
    many = batches(*(f"tenant{number % 20}" for number in range(60)))
    begun = next_batches(many, set())
    assert len(begun) == MOST
    assert next_batches(many, {batch.id for batch in begun}) == []
    assert len(next_batches(many, {batch.id for batch in begun[1:]})) == 1


class Unlucky(Store):
    """A store that fails its first moves to the end."""

    failures = 0

    def finalize(self, batch_id: str) -> Batch | None:
        if self.failures:
            self.failures -= 1
            raise OSError("the disk is away")
        return super().finalize(batch_id)


async def reply(line: Line, tenant: str, call: Call) -> Answer:
    return Answer(200, "cmpl-1", {})


class Bench:
    """A worker over a store, of a clock that is set by hand."""

    def __init__(self, root: Path) -> None:
        self.now = 1_000_000.0
        self.store = Unlucky(root, Quotas(2**20, 10, 10**6), now=lambda: self.now)
        self.instruments = Instruments()
        gateway = Gateway(None, LocalUsageLedger(LedgerState(VirtualClock(), 0.0)), None)
        turns = Turns(lambda own: Load(4, 100), lambda _: 1.0)
        self.tools = BatchTools(
            store=self.store,
            answers=lambda one: EngineAnswerer(one, reply, turns, gateway, lambda: None),
            fingerprint="one",
            max_lines=10,
            job=JobConfig(commit_seconds=0.02),
            recorder=BatchRecorder(self.instruments),
            now=lambda: self.now,
        )

    def file(self, lifetime: int | None = None) -> str:
        with closing(self.store.upload("")) as upload:
            upload.write(b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}')
            return upload.keep("in.jsonl", lifetime=lifetime).id

    def batch(self) -> Batch:
        return self.store.create_batch("", NewBatch(endpoint="/v1/completions", input_file_id=self.file(), model="m"))

    def stored(self, status: str) -> float | None:
        return self.instruments.registry.get_sample_value("jaxserve:batches", {"status": status})

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        stopped = asyncio.Event()
        task = asyncio.create_task(Worker(self.tools).run(stopped))
        async with asyncio.timeout(30):
            yield
            stopped.set()
            await task


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for name in ("LOOK_SECONDS", "RETRY_SECONDS", "UPKEEP_SECONDS"):
        monkeypatch.setattr(f"server.batches.worker.{name}", 0.01)
    made = Bench(tmp_path)
    yield made
    made.store.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def test_a_batch_that_fails_for_the_moment_is_tried_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.store.failures = 2
    batch = bench.batch()
    async with bench.working():
        await until(lambda: bench.store.batch("", batch.id).status in FINAL)
    assert bench.store.batch("", batch.id).status is BatchStatus.COMPLETED
    assert bench.store.failures == 0
    assert caplog.text.count("cannot go on for the moment") == 2
    assert "the disk is away" in caplog.text


async def test_batches_are_counted_and_what_nobody_wants_is_removed(bench: Bench, tmp_path: Path) -> None:
    batch = bench.batch()
    expired = bench.file(lifetime=60)
    orphan = tmp_path / "work" / "batch_gone"
    orphan.mkdir()
    async with bench.working():
        await until(lambda: bench.stored("completed") == 1)
        assert not orphan.exists()
        assert (tmp_path / "files" / expired).exists()
        bench.now += 60
        await until(lambda: not (tmp_path / "files" / expired).exists())
    assert bench.store.batch("", batch.id).status is BatchStatus.COMPLETED
    assert bench.stored("validating") == 0


async def test_a_worker_that_is_stopped_lets_its_batches_pause(bench: Bench) -> None:
    asked, batch = asyncio.Event(), bench.batch()

    async def never(line: Line, tenant: str, call: Call) -> Answer:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    answers = bench.tools.answers(batch)
    assert isinstance(answers, EngineAnswerer)
    bench.tools = replace(bench.tools, answers=lambda one: replace(answers, ask=never))
    async with bench.working():
        await asked.wait()
    assert bench.store.batch("", batch.id).status is BatchStatus.IN_PROGRESS
