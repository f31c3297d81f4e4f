"""Job: a file of requests that is worked off, in one run or in several."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from jaxserve.jobs.answers import Answerer
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.files import JobFiles
from jaxserve.jobs.runner import OnProgress, Runner
from jaxserve.jobs.scan import OnScan, Shard
from jaxserve.jobs.storage import JobModel, Storage
from jaxserve.jobs.summary import Counts, JobProgress, Summary


def _silent(*_: object) -> None:
    """Nobody is told."""


class Job:
    """A job that this process holds until it is closed; a context manager. Opening blocks, for the input is read whole.

    Args:
        on_scan: told how much of the input was read for its hash.

    Raises ConfigError if a file cannot be used, another process has the job, or the files are of a job with another input, shard
    or model.
    """

    def __init__(
        self,
        files: JobFiles,
        model: JobModel,
        *,
        shard: Shard | None = None,
        config: JobConfig | None = None,
        on_scan: OnScan = _silent,
    ) -> None:
        self._opened = time.monotonic()
        self._model = model
        self._config = config or JobConfig()
        self._storage = Storage(files, model, shard or Shard(), self._config, on_scan)
        self._runner: Runner | None = None
        self._stopped = False

    @property
    def complete(self) -> bool:
        return self._storage.state.complete

    @property
    def progress(self) -> JobProgress:
        if self._runner is not None:
            return self._runner.progress()
        return JobProgress(self._storage.lines, Counts(), self._storage.state.counts)

    @property
    def durable(self) -> int:
        """Lines whose results are on the disk. What was answered since the last commit is in `progress` and not in this."""
        return self._storage.state.counts.done

    async def run(self, answers: Answerer, on_progress: OnProgress = _silent) -> Summary:
        """Answer every line that is not done; once a job. Returns when all are, or after `stop`.

        Whatever ends it, what was done is committed. Raises StorageError where that is impossible, and what `answers` raises
        that stops a job.
        """
        assert self._runner is None, "a job runs once; open it again"
        if not (self.complete or self._stopped):
            self._runner = Runner(self._storage, answers, self._config, self._opened, on_progress)
            await self._runner.run()
        return self.summary()

    def stop(self) -> None:
        """Let `run` return soon: what is in flight is given up, and done when the job is resumed."""
        self._stopped = True
        if self._runner is not None:
            self._runner.stop()

    def summary(self) -> Summary:
        state, progress = self._storage.state, self.progress
        run = Counts() if self._runner is None else self._runner.counts
        return Summary(
            self._model.name, self._storage.identity.shard, progress.lines, state.complete, state.runs, run, progress.all_runs
        )

    def close(self) -> None:
        self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
