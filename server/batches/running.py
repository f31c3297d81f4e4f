"""One batch, from where it stands to its end: checked, answered, and its results handed over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jaxserve.errors import ConfigError, DrainingError, RefusedError, StorageFullError
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.files import JobFiles
from jaxserve.jobs.job import Job
from jaxserve.jobs.storage import JobModel
from jaxserve.jobs.summary import Counts as LineCounts
from jaxserve.jobs.summary import JobProgress
from jaxserve.logs import FIELDS
from jaxserve.metrics.batches import BatchRecorder
from server.batches.answers import EXPIRED, MODEL_CHANGED, LineAnswerer, Nobody
from server.batches.checking import InputRules, check_input
from server.batches.records import FINAL, Batch, BatchStatus, Counts, Problem, Results, Spent
from server.batches.store import Store

_LOG = logging.getLogger(__name__)

Step = Callable[[], Awaitable[Batch | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTools:
    """What all batches run with.

    Attributes:
        fingerprint: of the served model: a batch that was begun with another is not answered further.
        now: Unix time, seconds.
    """

    store: Store
    answers: Callable[[Batch], LineAnswerer]
    fingerprint: str
    max_lines: int
    job: JobConfig
    recorder: BatchRecorder
    now: Callable[[], float] = time.time


class BatchRun:
    """Runs one batch. Belongs to the event loop; all that blocks goes to threads."""

    def __init__(self, tools: BatchTools, batch: Batch) -> None:
        self._tools = tools
        self._batch = batch
        self._stopped = asyncio.Event()
        self._halted = False  # what runs now is to end, for the batch goes another way
        self._expiring = False
        self._job: Job | None = None
        self._kept: Results | None = None  # what is done, where a job of this run knows it: to open another reads the input again
        self._reported = 0  # lines that the store knows to be done
        self._recorded = LineCounts()  # in the metrics, of this job's run
        self._reporting: asyncio.Task[None] | None = None

    async def run(self) -> Batch:
        """Bring the batch to its end, or as far as it is when `stop` is called: another run goes on from there.

        Returns it as it is then. Raises what the disk or the database do; another run may go on then too.
        """
        began = time.monotonic()
        self._say("batch begins")
        steps: Mapping[BatchStatus, Step] = {
            BatchStatus.VALIDATING: self._check,
            BatchStatus.IN_PROGRESS: self._answer,
            BatchStatus.FINALIZING: self._complete,
            BatchStatus.CANCELLING: self._cancel,
        }
        while not self._stopped.is_set() and self._batch.status not in FINAL:
            self._halted = False
            moved = await steps[self._batch.status]()
            if moved is None:  # somebody else moved it, or this run is to stop
                moved = await asyncio.to_thread(self._tools.store.batch, self._batch.owner, self._batch.id)
            self._batch = moved
        if self._batch.status in FINAL:
            await asyncio.to_thread(shutil.rmtree, self._tools.store.work_folder(self._batch), ignore_errors=True)
        self._say("batch ends" if self._batch.status in FINAL else "batch pauses", seconds=round(time.monotonic() - began, 3))
        return self._batch

    def look(self, stored: Batch) -> None:
        """See whether the batch is still to go where it goes."""
        moved = stored.status is BatchStatus.CANCELLING and self._batch.status is not BatchStatus.CANCELLING
        expires = self._batch.status is BatchStatus.IN_PROGRESS and not self._expiring
        if moved or (expires and self._is_late):
            self._halt()

    def stop(self) -> None:
        """Let `run` return soon; what is done is kept."""
        self._stopped.set()
        self._halt()

    async def stopped(self, patience: float) -> None:
        """Wait for `stop`, or so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._stopped.wait()

    def _halt(self) -> None:
        self._halted = True
        if self._job is not None:
            self._job.stop()

    @property
    def _is_late(self) -> bool:
        return self._tools.now() >= self._batch.expires_at

    async def _check(self) -> Batch | None:
        """From validating to in_progress or failed, be it late or not: what expires tells of each of its lines."""
        store, batch = self._tools.store, self._batch
        rules = InputRules(batch.wanted.endpoint, self._tools.max_lines, self._tools.job.max_line_mib * 2**20)
        try:
            checked = await asyncio.to_thread(check_input, store.input_path(batch), rules, lambda: self._halted)
        except OSError as error:
            return await self._fail("invalid_input", "the input file cannot be read", str(error))
        if checked is None:
            return None
        if checked.problems:
            return await asyncio.to_thread(store.fail, batch.id, checked.problems)
        return await asyncio.to_thread(store.begin, batch.id, checked.requests)

    async def _answer(self) -> Batch | None:
        """From in_progress to finalizing, expired or failed."""
        store, batch = self._tools.store, self._batch
        late = self._expiring = self._is_late
        try:
            results = await self._work(await self._answers(late=late))
        except ConfigError as error:  # the job's files cannot be had
            if late:
                return await asyncio.to_thread(store.expire, batch.id, Results(batch.counts, batch.spent))
            if error.param == "input":
                return await self._fail("invalid_input", "the input file is not what it was when the batch began", error.message)
            raise
        if results is None:
            return None
        if late:
            return await asyncio.to_thread(store.expire, batch.id, results)
        return await asyncio.to_thread(store.finalize, batch.id)

    async def _answers(self, *, late: bool) -> LineAnswerer:
        if late:
            return Nobody(EXPIRED)
        same = await asyncio.to_thread(_is_same_model, self._folder / "model", self._tools.fingerprint)
        return self._tools.answers(self._batch) if same else Nobody(MODEL_CHANGED)

    async def _complete(self) -> Batch | None:
        """From finalizing to completed. Every line has its answer, so nobody is asked."""
        store, batch = self._tools.store, self._batch
        try:
            results = self._kept or await self._work(Nobody(EXPIRED))
        except ConfigError as error:
            return await self._fail("results_lost", "the results cannot be read any more", error.message)
        return None if results is None else await asyncio.to_thread(store.complete, batch.id, results)

    async def _cancel(self) -> Batch | None:
        """From cancelling to cancelled, with what is done."""
        batch, results = self._batch, self._kept
        if results is None and self._files.journal.exists():
            try:
                results = await self._done()
            except ConfigError as error:
                _LOG.error("what is done of %s is lost: %s", batch.id, error.message)
        return await asyncio.to_thread(self._tools.store.cancelled, batch.id, results or Results(batch.counts, batch.spent))

    async def _fail(self, code: str, message: str, reason: str) -> Batch | None:
        """End a batch whose files are not in order; clients are not told their names."""
        _LOG.error("%s fails: %s", self._batch.id, reason)
        return await asyncio.to_thread(self._tools.store.fail, self._batch.id, [Problem(code, message)])

    async def _work(self, answers: LineAnswerer) -> Results | None:
        """Work on the lines that are left. Returns the results if none is left then."""
        job = await asyncio.to_thread(self._open)
        try:
            self._job, self._recorded, self._kept = job, LineCounts(), None
            if self._halted:
                return None
            try:
                await job.run(answers, partial(self._on_progress, answers))
            except DrainingError:  # the server ends, and so does this run
                self._stopped.set()
            answers.ended()
            if self._reporting is not None:
                await self._reporting
            await self._report(job.progress.all_runs)
            self._kept = self._results(job)
            return self._kept if job.complete else None
        finally:
            self._job = None
            await asyncio.to_thread(job.close)

    async def _done(self) -> Results:
        """What is done; nothing is written to it any more."""
        job = await asyncio.to_thread(self._open)
        try:
            return self._results(job)
        finally:
            await asyncio.to_thread(job.close)

    def _open(self) -> Job:
        return Job(self._files, JobModel(self._batch.wanted.model, ""), config=self._tools.job)

    @property
    def _folder(self) -> Path:
        return self._tools.store.work_folder(self._batch)

    @property
    def _files(self) -> JobFiles:
        folder = self._folder
        return JobFiles(self._tools.store.input_path(self._batch), folder / "output", folder / "errors", folder / "journal")

    def _results(self, job: Job) -> Results:
        done = job.progress.all_runs
        return Results(self._counts(done), _spent(done), self._files.output, self._files.errors)

    def _counts(self, done: LineCounts) -> Counts:
        return Counts(self._batch.counts.total, done.answered, done.failed + done.invalid)

    def _on_progress(self, answers: LineAnswerer, progress: JobProgress) -> None:
        answers.committed()
        self._record(progress.run)
        if self._reporting is None or self._reporting.done():  # else the next time, or at the end
            self._reporting = asyncio.create_task(self._report(progress.all_runs))

    async def _report(self, done: LineCounts) -> None:
        if done.done == self._reported:
            return
        try:
            await asyncio.to_thread(self._tools.store.progress, self._batch.id, self._counts(done), _spent(done))
            self._reported = done.done
        except (RefusedError, StorageFullError) as error:  # the batch's end will say it
            _LOG.warning("the progress of %s cannot be stored: %s", self._batch.id, error.message)

    def _record(self, run: LineCounts) -> None:
        before = self._recorded
        self._tools.recorder.lines(completed=run.answered - before.answered, failed=_failed(run) - _failed(before))
        self._recorded = run.copy()

    def _say(self, what: str, **more: object) -> None:
        batch = self._batch
        fields = {
            "batch": batch.id,
            "tenant": batch.owner,
            "status": batch.status.value,
            "endpoint": batch.wanted.endpoint,
            "requests": batch.counts.total,
            "completed": batch.counts.completed,
            "failed": batch.counts.failed,
            "input_tokens": batch.spent.input_tokens,
            "output_tokens": batch.spent.output_tokens,
        }
        _LOG.info(what, extra={FIELDS: {**fields, **more}})


def _failed(counts: LineCounts) -> int:
    return counts.failed + counts.invalid


def _spent(done: LineCounts) -> Spent:
    return Spent(done.prompt_tokens, done.cached_tokens, done.completion_tokens)


def _is_same_model(path: Path, fingerprint: str) -> bool:
    """Whether a batch was begun with this model; it is, if this is its beginning."""
    try:
        return path.read_text() == fingerprint
    except FileNotFoundError:
        new = path.with_suffix(".new")
        new.write_text(fingerprint)
        new.replace(path)
        return True
