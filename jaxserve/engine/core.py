"""One turn of the engine: plan and submit the next step, then take in the one before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from jaxserve.errors import EngineDeadError
from jaxserve.executor.base import Executor, StepHandle
from jaxserve.scheduler.plan import Plan
from jaxserve.scheduler.request import EngineRequest
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.scheduler.update import Update

if TYPE_CHECKING:  # an engine without dumps needs none of what writes them
    from jaxserve.record.crash import CrashDumper


class EngineCore:
    """Scheduler and executor, driven by one thread.

    Attributes:
        scheduler, executor: as given.

    Args:
        scheduler: owns sequences and pages.
        executor: runs plans.
        overlap: whether a step is planned and submitted while the one before it runs. A sequence that ends is then noticed one
            step late and its extra token discarded; the tokens are the same either way.
        dumper: keeps the last steps and writes them down when one fails; None to keep none.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, *, overlap: bool, dumper: CrashDumper | None = None) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self._overlap = overlap
        self._dumper = dumper
        self._in_flight: tuple[Plan, StepHandle, float] | None = None  # with the time it was submitted
        self._collected = 0.0  # time of the latest result
        self._failure: BaseException | None = None

    @property
    def has_work(self) -> bool:
        """Whether a turn would do anything."""
        return self._failure is None and (self.scheduler.has_work or self._in_flight is not None)

    def add(self, requests: Sequence[EngineRequest]) -> None:
        """Queue the sequences of one request. Raises RefusedError, or EngineDeadError after a step failed."""
        self._check_alive()
        self.scheduler.add(requests)

    def abort(self, ids: Iterable[str]) -> list[str]:
        """End sequences now; their pages are free for the next plan. Returns those that were active."""
        return self.scheduler.abort(ids)

    def step(self) -> list[Update]:
        """One turn. Returns what the collected step did; empty while the first step of a busy period runs.

        Whatever is raised ends the engine: buffers may be donated and pages promised that were never written.
        """
        self._check_alive()
        try:
            return self._turn()
        except BaseException as error:
            self._failure = error
            if self._dumper is not None and isinstance(error, Exception):
                self._dumper.dump(error)
            raise

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise EngineDeadError(f"the engine died: {self._failure!r}")

    def _turn(self) -> list[Update]:
        clock = self.scheduler.clock
        plan = self.scheduler.schedule()
        updates = self.scheduler.take_ended()
        submitted = None
        if plan is not None:
            if self._dumper is not None:
                self._dumper.ring.planned(plan, self.scheduler.sequences)
            submitted = (plan, self.executor.submit(plan), clock.now())
        if self._overlap:
            submitted, self._in_flight = self._in_flight, submitted
        if submitted is None:
            return updates
        plan, handle, started = submitted
        result = handle.result()
        now = clock.now()
        seconds = now - max(started, self._collected)  # a step begins when the one before it is over
        self._collected = now
        if self._dumper is not None:
            self._dumper.ring.collected(plan, result, seconds)
        return updates + self.scheduler.apply(plan, result, seconds)
