"""Keeps many lines of a job in flight, and writes down what became of them about once a second."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from jaxserve.errors import EngineDeadError, EngineKilledError, JaxserveError
from jaxserve.jobs.answers import ASKED_AGAIN, STOPS_JOB, Answer, Answerer, NoAnswer
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.journal import State
from jaxserve.jobs.order import Waiting, sequences
from jaxserve.jobs.reader import Read
from jaxserve.jobs.results import Results, Settled
from jaxserve.jobs.storage import Storage
from jaxserve.jobs.summary import Counts, JobProgress

logger = logging.getLogger(__name__)

OnProgress = Callable[[JobProgress], None]
Result = TypeVar("Result")

_RETRY_SECONDS = 1.0  # before a refused line is asked again, where the refusal does not say
_MANY_BYTES = 2**23  # of results that wait to be written: more are not waited for, and nothing new is asked


KILLS_ENGINE = NoAnswer(EngineKilledError.code, "the engine process ended twice while it ran this request, at last alone")


class Runner:
    """One run of a job. Belongs to the event loop it runs in; all that blocks goes to one thread of its own.

    Attributes:
        counts: of this run.

    Args:
        opened: when the job was opened, by time.monotonic().
        on_progress: told about every commit_seconds.
    """

    def __init__(self, storage: Storage, answers: Answerer, config: JobConfig, opened: float, on_progress: OnProgress) -> None:
        self.counts = Counts()
        self._storage = storage
        self._answers = answers
        self._config = config
        self._opened, self._began = opened, time.monotonic()
        self._on_progress = on_progress
        self._results = Results(storage.identity.input_sha256, self.counts)
        self._before = storage.state
        self._position = (storage.state.line, storage.state.offset)  # of the first line that was not read
        self._open: dict[int, int] = {}  # offsets of lines that were read and are not being committed, in the file's order
        self._ready: deque[Waiting] = deque()
        self._suspected: deque[Waiting] = deque()  # were in flight when a run ended: they are asked last, one at a time
        self._held = 0  # bytes of lines that were read and have no answer
        self._in_flight = 0  # sequences
        self._settled: list[Settled] = []
        self._unwritten = 0  # bytes of results
        self._exhausted = False
        self._stopped = False
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._changed, self._commit_now = asyncio.Event(), asyncio.Event()
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="jaxserve-job")

    async def run(self) -> None:
        """Work until every line is done, `stop` is called or something fails; commit what was done in any case.

        Raises StorageError, or what the answers raise that stops a job.
        """
        committing = asyncio.create_task(self._watched(self._commit_regularly()))
        try:
            while not self._over():
                self._read()
                self._ask()
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._stopped = True
            await _undisturbed(self._wind_up(committing))
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End soon: what is in flight is given up, what is done is committed."""
        self._stopped = True
        self._changed.set()

    def progress(self) -> JobProgress:
        now = time.monotonic()
        self.counts.wall_seconds, self.counts.answering_seconds = now - self._opened, now - self._began
        return JobProgress(self._storage.lines, self.counts.copy(), self._before.counts.plus(self.counts))

    def _over(self) -> bool:
        worked_off = self._exhausted and not self._ready and not self._suspected and not self._tasks
        return self._stopped or self._failure is not None or worked_off

    def _read(self) -> None:
        full = self._held >= self._config.window_mib * 2**20 or self._unwritten >= _MANY_BYTES
        if self._reading is None and not self._exhausted and not full and 2 * len(self._ready) <= self._config.window:
            self._reading = asyncio.create_task(self._watched(self._read_more()))

    def _ask(self) -> None:
        while self._ready and self._unwritten < _MANY_BYTES:
            weight = min(sequences(self._ready[0].line.body), self._config.concurrency)
            if self._in_flight + weight > self._config.concurrency:
                return
            self._begin(self._ready.popleft(), weight)
        if self._suspected and self._exhausted and not self._ready and not self._tasks:
            one = self._suspected.popleft()
            self._held += one.size
            self._begin(one, sequences(one.line.body), alone=True)

    def _begin(self, one: Waiting, weight: int, *, alone: bool = False) -> None:
        self._in_flight += weight
        self._storage.in_flight.begin(one.line.number, alone=alone)
        task = asyncio.create_task(self._watched(self._answer(one, weight)))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()

    async def _read_more(self) -> None:
        try:
            read = await self._on_disk(self._storage.read)
        finally:
            self._reading = None
        self._take(read)

    def _take(self, read: Read) -> None:
        self._open.update(read.offsets)
        self._position, self._exhausted = (read.line, read.offset), read.exhausted
        for one in read.waiting:
            if one.line.number in self._storage.in_flight.guilty:
                self._settle(self._results.answered(one.line, KILLS_ENGINE))
            elif self._storage.in_flight.deaths.get(one.line.number, 0) >= self._config.suspected_after:
                self._suspected.append(one)
            else:
                self._ready.append(one)
                self._held += one.size
        for error in read.errors:
            self._settle(self._results.invalid(error))
        for number in read.blanks:
            self._settle(self._results.blank(number))

    async def _answer(self, one: Waiting, weight: int) -> None:
        try:
            answer = await self._asked(one)
        finally:
            self._in_flight -= weight
        self._storage.in_flight.end(one.line.number)
        self._held -= one.size
        self._settle(self._results.answered(one.line, answer))

    async def _asked(self, one: Waiting) -> Answer | NoAnswer:
        while True:
            try:
                return await self._answers.answer(one.line)
            except JaxserveError as error:
                if error.code in STOPS_JOB:
                    raise
                if error.code not in ASKED_AGAIN:
                    return NoAnswer(error.code, error.message)
                self.counts.asked_again += 1
                await asyncio.sleep(_RETRY_SECONDS if error.retry_after is None else error.retry_after)
            except Exception as error:
                logger.exception("line %d could not be answered", one.line.number)
                return NoAnswer("internal_error", f"the request failed: {error!r}")

    def _settle(self, settled: Settled) -> None:
        self._settled.append(settled)
        self._unwritten += len(settled.data)
        if self._unwritten >= _MANY_BYTES:
            self._commit_now.set()

    async def _commit_regularly(self) -> None:
        while not self._stopped:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.commit_seconds):
                    await self._commit_now.wait()
            self._commit_now.clear()
            if self._settled:
                await self._commit()
            self._on_progress(self.progress())

    async def _commit(self) -> None:
        settled, self._settled = self._settled, []
        for one in settled:
            del self._open[one.number]
        line, offset = next(iter(self._open.items()), self._position)
        complete = self._exhausted and not self._open
        state = State(line, offset, counts=self.progress().all_runs, runs=self._before.runs + 1, complete=complete)
        await self._on_disk(lambda: self._storage.commit(settled, state))
        for one in settled:
            self._storage.in_flight.done(one.number)
        self._unwritten -= sum(len(one.data) for one in settled)
        self._changed.set()

    async def _wind_up(self, committing: asyncio.Task[None]) -> None:
        """Give up what is in flight, and commit what is done, unless that is what failed."""
        self._commit_now.set()
        await committing  # not cancelled: it may be in the middle of a commit
        reading = {self._reading} - {None}
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *reading, return_exceptions=True)
        await self._watched(self._commit())
        self._on_progress(self.progress())
        await asyncio.to_thread(self._disk.shutdown)

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._failure = self._failure or error
            if isinstance(error, EngineDeadError):
                self._storage.in_flight.died()
        finally:
            self._changed.set()

    async def _on_disk(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)


async def _undisturbed(work: Coroutine[Any, Any, None]) -> None:
    """Do work to its end; whoever cancels it meanwhile is heard afterwards."""
    task, cancelled = asyncio.create_task(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError
