"""Which batches begin, how much of the engine they take, and what becomes of those that fail for the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.jobs.answers import Answer
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.lines import Line
from jaxserve.metrics.batches import BatchRecorder
from jaxserve.metrics.instruments import Instruments
from server.batches.answers import EngineAnswers
from server.batches.records import FINAL, Batch, BatchStatus, NewBatch
from server.batches.running import BatchTools
from server.batches.store import Quotas, Store
from server.batches.turns import Load, Turns
from server.batches.worker import MOST, MOST_OF_A_TENANT, Worker, engine_share, next_batches
from server.gateway.gateway import Gateway
from server.gateway.ledger import LedgerState, LocalLedger


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


@pytest.mark.parametrize(
    ("rows", "waiting", "sequences"), [(32, 1024, 40), (256, 1024, 320), (8, 1024, 12), (64, 100, 50), (4, 1, 1)]
)
def test_rows_are_filled_and_the_queue_never(rows: int, waiting: int, sequences: int) -> None:
    config = SchedulerConfig(max_num_seqs=rows, max_waiting=waiting, max_waiting_tokens=1000)
    assert engine_share(config) == Load(sequences, 500)


class Unlucky(Store):
    """A store that fails its first moves to the end."""

    failures = 2

    def finalize(self, batch_id: str) -> Batch | None:
        if self.failures:
            self.failures -= 1
            raise OSError("the disk is away")
        return super().finalize(batch_id)


async def reply(line: Line, tenant: str) -> Answer:
    return Answer(200, "cmpl-1", {})


async def test_a_batch_that_fails_for_the_moment_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.batches.worker.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("server.batches.worker.RETRY_SECONDS", 0.01)
    gateway = Gateway(None, LocalLedger(LedgerState(VirtualClock(), 0.0)), None, max_body_bytes=1)
    turns, instruments, stopped = Turns(Load(4, 100), lambda _: 1.0), Instruments(), asyncio.Event()
    with closing(Unlucky(tmp_path, Quotas(2**20, 10, 10**6))) as store:
        tools = BatchTools(
            store=store,
            answers=lambda one: EngineAnswers(one, reply, turns, gateway, lambda: None),
            fingerprint="one",
            max_lines=10,
            job=JobConfig(commit_seconds=0.02),
            recorder=BatchRecorder(instruments),
        )
        with closing(store.upload("")) as upload:
            upload.write(b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}')
            file = upload.keep("in.jsonl")
        batch = store.create_batch("", NewBatch(endpoint="/v1/completions", input_file_id=file.id, model="m"))
        working = asyncio.create_task(Worker(tools).run(stopped))
        async with asyncio.timeout(30):
            while store.batch("", batch.id).status not in FINAL:
                await asyncio.sleep(0.01)
            stopped.set()
            await working
        assert store.batch("", batch.id).status is BatchStatus.COMPLETED
        assert store.failures == 0
    assert caplog.text.count("cannot go on for the moment") == 2
    assert "the disk is away" in caplog.text
