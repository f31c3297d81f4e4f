"""One batch over a real store and a real job, with answers that are told when to come: its way to every end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jaxserve.clock import VirtualClock
from jaxserve.engine.events import Started
from jaxserve.errors import ConfigError
from jaxserve.jobs.answers import Answer
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.lines import Line
from jaxserve.logs import FIELDS
from jaxserve.metrics.batches import BatchRecorder
from jaxserve.metrics.instruments import Instruments
from jaxserve.types import RequestOptions
from server.batches.answers import EngineAnswerer
from server.batches.records import WINDOW_SECONDS, Batch, BatchStatus, Counts, NewBatch
from server.batches.running import BatchRun, BatchTools
from server.batches.store import Quotas, Store
from server.batches.turns import Load, Turns
from server.gateway.call import Call, JobSize
from server.gateway.gateway import Gateway
from server.gateway.ledger import LedgerState, LocalUsageLedger
from server.gateway.usage import UsageEvent, UsageLog

PATIENCE = 30.0
URL = "/v1/completions"


class Bill(UsageLog):
    """A usage log that is looked at at once."""

    def __init__(self) -> None:
        self.billed: list[str] = []

    def add(self, event: UsageEvent) -> None:
        self.billed.append(event.request_id)


class Unlucky(Store):
    """A store whose process may end when a batch is finalizing."""

    crashes = False

    def finalize(self, batch_id: str) -> Batch | None:
        batch = super().finalize(batch_id)
        if self.crashes:
            raise OSError("the power is gone")
        return batch


@dataclass
class Bench:
    """A store, and what answers: at once, but for lines from `open_until` on, which never are."""

    root: Path
    now: float = 1_000_000.0
    open_until: int = 10**9
    status_of: Callable[[Line], int] = lambda line: 200
    fingerprint: str = "one"
    asked: list[int] = field(default_factory=list)
    instruments: Instruments = field(default_factory=Instruments)
    bill: Bill = field(default_factory=Bill)

    def __post_init__(self) -> None:
        self.store = Unlucky(self.root, Quotas(2**20, 10, 10**6), now=lambda: self.now)

    def batch(self, *lines: bytes) -> Batch:
        with closing(self.store.upload("")) as upload:
            for line in lines:
                upload.write(line + b"\n")
            file = upload.keep("in.jsonl")
        return self.store.create_batch("", NewBatch(endpoint=URL, input_file_id=file.id, model="m"))

    def run_of(self, batch: Batch, when_begun: Callable[[], None] = lambda: None) -> BatchRun:
        """A run, which tells when it is about to open the batch's job."""
        gateway = Gateway(None, LocalUsageLedger(LedgerState(VirtualClock(), 0.0)), self.bill)
        turns = Turns(lambda own: Load(4, 10**6), lambda tenant: 1.0)

        def answers(one: Batch) -> EngineAnswerer:
            when_begun()
            return EngineAnswerer(one, self.ask, turns, gateway, lambda: None)

        tools = BatchTools(
            store=self.store,
            answers=answers,
            fingerprint=self.fingerprint,
            max_lines=100,
            job=JobConfig(concurrency=4, order="file", commit_seconds=0.02),
            recorder=BatchRecorder(self.instruments),
            now=lambda: self.now,
        )
        return BatchRun(tools, self.store.batch("", batch.id))

    async def ask(self, line: Line, tenant: str, call: Call) -> Answer:
        self.asked.append(line.number)
        size = JobSize(prompt_tokens=1, prompts=1, sequences=1, max_tokens=1, delivers_output=True)
        work = await call.start("cmpl-1", "m", RequestOptions(), size)
        work.passed(0, Started(call.request_id, (1, 2, 3), 1, 0.0))
        if line.number >= self.open_until:
            await asyncio.Event().wait()
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
        return Answer(self.status_of(line), f"cmpl-{line.number}", {"usage": usage} if self.status_of(line) == 200 else {})

    def results(self, batch: Batch) -> tuple[list[str], list[tuple[str, str | None]]]:
        """Names in the output, and in the error file with the code where there was no response."""
        output = self._lines(batch.output_file_id)
        errors = self._lines(batch.error_file_id)
        return [one["custom_id"] for one in output], [(one["custom_id"], (one["error"] or {}).get("code")) for one in errors]

    def counted(self, fate: str) -> float:
        return self.instruments.registry.get_sample_value("jaxserve:batch_requests_total", {"fate": fate}) or 0.0

    def _lines(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        _, content = self.store.open_file("", file_id)
        with content:
            return [json.loads(line) for line in content]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "state")
    yield made
    made.store.close()


def requests(count: int) -> list[bytes]:
    return [
        json.dumps({"custom_id": f"r{number}", "method": "POST", "url": URL, "body": {"prompt": "x"}}).encode()
        for number in range(1, count + 1)
    ]


def names(first: int, last: int) -> list[str]:
    return [f"r{number}" for number in range(first, last + 1)]


@asynccontextmanager
async def running(run: BatchRun) -> AsyncIterator[asyncio.Task[Batch]]:
    task = asyncio.create_task(run.run())
    try:
        async with asyncio.timeout(PATIENCE):
            yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


def done(bench: Bench, batch: Batch, count: int) -> bool:
    counts = bench.store.batch("", batch.id).counts
    return counts.completed + counts.failed == count


async def test_a_batch_is_answered_and_its_files_are_handed_over(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="server.batches")
    bench.status_of = lambda line: 400 if line.number == 2 else 200
    batch = bench.batch(*requests(6))
    ended = await bench.run_of(batch).run()
    assert ended == bench.store.batch("", batch.id)
    assert (ended.status, ended.counts) == (BatchStatus.COMPLETED, Counts(6, 5, 1))
    assert (ended.spent.input_tokens, ended.spent.cached_tokens, ended.spent.output_tokens) == (15, 5, 10)
    output, errors = bench.results(ended)
    assert (sorted(output), errors) == (["r1", *names(3, 6)], [("r2", None)])
    assert (bench.counted("completed"), bench.counted("failed")) == (5, 1)
    assert not list((bench.root / "work").iterdir())
    begins, ends = caplog.records
    assert (begins.getMessage(), ends.getMessage()) == ("batch begins", "batch ends")
    told = getattr(ends, FIELDS)
    assert (told["batch"], told["status"], told["requests"], told["failed"], told["output_tokens"]) == (
        batch.id,
        "completed",
        6,
        1,
        10,
    )


async def test_a_file_that_is_none_fails_the_batch_before_anything_is_asked(bench: Bench) -> None:
    ended = await bench.run_of(bench.batch(requests(1)[0], b"{")).run()
    assert (ended.status, [one.line for one in ended.problems]) == (BatchStatus.FAILED, [2])
    assert (bench.asked, ended.output_file_id, ended.error_file_id) == ([], None, None)


async def test_a_run_that_is_stopped_goes_on_where_it_was(bench: Bench) -> None:
    bench.open_until = 8
    batch = bench.batch(*requests(12))
    run = bench.run_of(batch)
    async with running(run) as task:
        await until(lambda: done(bench, batch, 7))
        run.stop()
        paused = await task
    assert paused.status is BatchStatus.IN_PROGRESS
    bench.open_until = 10**9
    bench.asked.clear()
    ended = await bench.run_of(batch).run()
    assert sorted(bench.asked) == list(range(8, 13))
    assert (ended.status, ended.counts) == (BatchStatus.COMPLETED, Counts(12, 12, 0))
    assert sorted(bench.results(ended)[0]) == sorted(names(1, 12))
    assert ended.spent.output_tokens == 24
    assert bench.counted("completed") == 12


async def test_what_is_committed_is_billed_once(bench: Bench) -> None:
    bench.open_until = 4
    batch = bench.batch(*requests(6))
    run = bench.run_of(batch)

    def billed() -> list[int]:
        return sorted({int(name.rpartition("-")[2]) for name in bench.bill.billed})

    async with running(run) as task:
        await until(lambda: billed() == [1, 2, 3])
        run.stop()
        await task
    assert billed() == [1, 2, 3]
    bench.open_until = 10**9
    await bench.run_of(batch).run()
    assert billed() == [1, 2, 3, 4, 5, 6]
    assert len(bench.bill.billed) == 2 * 6, "of each its prompt and its end"


async def test_a_run_that_was_stopped_before_it_began_does_nothing(bench: Bench) -> None:
    run = bench.run_of(bench.batch(*requests(2)))
    run.stop()
    assert (await run.run()).status is BatchStatus.VALIDATING


async def test_a_run_that_is_stopped_while_its_job_is_opened_asks_nothing(bench: Bench) -> None:
    def stop() -> None:
        run.stop()

    run = bench.run_of(bench.batch(*requests(3)), when_begun=stop)
    async with running(run) as task:
        assert (await task).status is BatchStatus.IN_PROGRESS
    assert bench.asked == []


async def test_a_cancelled_batch_delivers_what_is_done(bench: Bench) -> None:
    bench.open_until = 4
    batch = bench.batch(*requests(9))
    run = bench.run_of(batch)
    async with running(run) as task:
        await until(lambda: done(bench, batch, 3))
        run.look(bench.store.batch("", batch.id))
        await asyncio.sleep(0)
        assert not task.done()
        run.look(bench.store.cancel("", batch.id))
        ended = await task
    assert (ended.status, ended.counts) == (BatchStatus.CANCELLED, Counts(9, 3, 0))
    assert bench.results(ended) == (names(1, 3), [])


async def test_a_batch_that_was_cancelled_before_it_ran_has_no_files(bench: Bench) -> None:
    batch = bench.batch(*requests(3))
    bench.store.cancel("", batch.id)
    ended = await bench.run_of(batch).run()
    assert (ended.status, bench.asked, ended.output_file_id) == (BatchStatus.CANCELLED, [], None)


@pytest.mark.parametrize("broken", [False, True])
async def test_a_batch_that_is_cancelled_while_nobody_runs_it(bench: Bench, broken: bool) -> None:
    bench.open_until = 4
    batch = bench.batch(*requests(9))
    run = bench.run_of(batch)
    async with running(run) as task:
        await until(lambda: done(bench, batch, 3))
        run.stop()
        await task
    bench.store.cancel("", batch.id)
    if broken:
        (bench.store.work_folder(batch) / "journal").write_bytes(b"no database" * 100)
    ended = await bench.run_of(batch).run()
    assert (ended.status, ended.counts) == (BatchStatus.CANCELLED, Counts(9, 3, 0))
    assert bench.results(ended) == ([] if broken else names(1, 3), [])


async def test_a_batch_that_expires_delivers_what_is_done_and_names_the_rest(bench: Bench) -> None:
    bench.open_until = 4
    batch = bench.batch(*requests(9))
    run = bench.run_of(batch)
    async with running(run) as task:
        await until(lambda: done(bench, batch, 3))
        bench.now += WINDOW_SECONDS - 1
        run.look(bench.store.batch("", batch.id))
        await asyncio.sleep(0)
        assert not task.done()
        bench.now += 1
        while not task.done():  # as often as may be: what ends it is not halted again
            run.look(bench.store.batch("", batch.id))
            await asyncio.sleep(0)
        ended = await task
    assert (ended.status, ended.counts) == (BatchStatus.EXPIRED, Counts(9, 3, 6))
    assert bench.results(ended) == (names(1, 3), [(name, "batch_expired") for name in names(4, 9)])


async def test_a_batch_that_expired_while_nobody_ran_it(bench: Bench) -> None:
    fresh, begun = bench.batch(*requests(2)), bench.batch(*requests(2))
    bench.store.begin(begun.id, 2)
    bench.now += WINDOW_SECONDS
    ended = [await bench.run_of(batch).run() for batch in (fresh, begun)]
    assert {one.status for one in ended} == {BatchStatus.EXPIRED}
    assert bench.asked == []
    for one in ended:
        assert bench.results(one) == ([], [("r1", "batch_expired"), ("r2", "batch_expired")])


async def test_another_model_does_not_go_on_with_a_batch(bench: Bench) -> None:
    bench.open_until = 3
    batch = bench.batch(*requests(4))
    run = bench.run_of(batch)
    async with running(run) as task:
        await until(lambda: done(bench, batch, 2))
        run.stop()
        await task
    bench.fingerprint = "another"
    ended = await bench.run_of(batch).run()
    assert ended.status is BatchStatus.COMPLETED
    assert bench.results(ended) == (names(1, 2), [("r3", "model_changed"), ("r4", "model_changed")])


async def test_a_crash_between_the_last_answer_and_the_end_asks_nothing_again(bench: Bench) -> None:
    batch = bench.batch(*requests(3))
    bench.store.crashes = True
    with pytest.raises(OSError, match="power"):
        await bench.run_of(batch).run()
    bench.store.crashes = False
    bench.asked.clear()
    ended = await bench.run_of(batch).run()
    assert (ended.status, ended.counts, bench.asked) == (BatchStatus.COMPLETED, Counts(3, 3, 0), [])
    assert sorted(bench.results(ended)[0]) == names(1, 3)


async def test_results_that_are_lost_are_told(bench: Bench) -> None:
    batch = bench.batch(*requests(3))
    bench.store.begin(batch.id, 3)
    bench.store.finalize(batch.id)
    (bench.store.work_folder(batch) / "output").write_bytes(b"what no journal knows of\n")
    ended = await bench.run_of(batch).run()
    assert (ended.status, [one.code for one in ended.problems]) == (BatchStatus.FAILED, ["results_lost"])


@pytest.mark.parametrize("begun", [False, True])
async def test_an_input_that_is_gone_fails_the_batch(bench: Bench, begun: bool) -> None:
    batch = bench.batch(*requests(3))
    if begun:
        bench.store.begin(batch.id, 3)
    bench.store.input_path(batch).unlink()
    ended = await bench.run_of(batch).run()
    assert (ended.status, [one.code for one in ended.problems]) == (BatchStatus.FAILED, ["invalid_input"])
    assert str(bench.root) not in ended.problems[0].message


async def test_files_that_cannot_be_had_are_told_and_do_not_outlive_the_window(bench: Bench) -> None:
    batch = bench.batch(*requests(3))
    bench.store.begin(batch.id, 3)
    (bench.store.work_folder(batch) / "journal").write_bytes(b"no database" * 100)
    with pytest.raises(ConfigError):
        await bench.run_of(batch).run()
    bench.now += WINDOW_SECONDS
    assert (await bench.run_of(batch).run()).status is BatchStatus.EXPIRED
