"""The worker: the one that runs a server's batches, a few of each tenant side by side."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Collection, Sequence

from jaxserve.children import Backoff
from jaxserve.errors import JaxserveError
from server.batches.records import Batch
from server.batches.running import BatchRun, BatchTools

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 0.25  # between looks at what is new and what is to be cancelled
RETRY_SECONDS = 1.0  # at least, before a batch that failed for the moment goes on
UPKEEP_SECONDS = 5.0  # between countings of batches and removals of expired files
MOST_OF_A_TENANT = 4  # batches side by side: a small one need not wait for a huge one
MOST = 32  # of all tenants


def next_batches(unfinished: Sequence[Batch], running: Collection[str]) -> list[Batch]:
    """Those to begin now: the oldest of each tenant's, tenants with the fewest that run first.

    Args:
        unfinished: all, oldest first.
        running: ids of those that run, or are not to run yet.
    """
    of_tenant = Counter(batch.owner for batch in unfinished if batch.id in running)
    waiting = [batch for batch in unfinished if batch.id not in running]
    chosen: list[Batch] = []
    for _ in range(MOST - of_tenant.total()):
        free = [batch for batch in waiting if of_tenant[batch.owner] < MOST_OF_A_TENANT]
        if not free:
            break
        batch = min(free, key=lambda one: of_tenant[one.owner])  # of several the first, which is the oldest
        waiting.remove(batch)
        of_tenant[batch.owner] += 1
        chosen.append(batch)
    return chosen


class Worker:
    """Runs batches until it is stopped. Belongs to the event loop it runs in; there must be one a store."""

    def __init__(self, tools: BatchTools) -> None:
        self._tools = tools
        self._runs: dict[str, BatchRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: dict[str, Backoff] = {}
        self._kept_up = float("-inf")

    async def run(self, stopped: asyncio.Event) -> None:
        """Work until `stopped` is set; then keep what is done and return."""
        await asyncio.to_thread(self._tools.store.remove_orphans)  # now, while nothing runs that makes any
        while not stopped.is_set():
            try:
                await self._look()
            except JaxserveError as error:
                _LOG.error("batches cannot be looked at: %s", error.message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await stopped.wait()
        for run in self._runs.values():
            run.stop()
        await asyncio.gather(*self._tasks)

    async def _look(self) -> None:
        unfinished = await asyncio.to_thread(self._tools.store.unfinished)
        for batch in unfinished:
            if batch.id in self._runs:
                self._runs[batch.id].look(batch)
        for batch in next_batches(unfinished, self._runs.keys()):
            self._begin(batch)
        if time.monotonic() - self._kept_up >= UPKEEP_SECONDS:
            self._kept_up = time.monotonic()
            await asyncio.to_thread(self._tools.store.remove_expired)
            by_status = await asyncio.to_thread(self._tools.store.by_status)
            self._tools.recorder.stored({status.value: count for status, count in by_status.items()})

    def _begin(self, batch: Batch) -> None:
        run = self._runs[batch.id] = BatchRun(self._tools, batch)
        task = asyncio.create_task(self._watch(batch, run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, batch: Batch, run: BatchRun) -> None:
        """Run a batch. One that fails here keeps its place for a while, and goes on from where it is when it has left it."""
        began = time.monotonic()
        try:
            await run.run()
            self._failures.pop(batch.id, None)
        except Exception as error:
            backoff = self._failures.setdefault(batch.id, Backoff())
            backoff.failed(time.monotonic() - began)
            known = isinstance(error, JaxserveError)
            _LOG.error("%s cannot go on for the moment: %s", batch.id, error, exc_info=None if known else error)
            await run.stopped(max(backoff.seconds, RETRY_SECONDS))
        finally:
            del self._runs[batch.id]
