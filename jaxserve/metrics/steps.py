"""Records the steps of an engine: their time, their phases, their size, and what was computed for nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import Counter

from jaxserve.metrics import catalogue
from jaxserve.metrics.experts import ExpertRecorder
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.process import ProcessRecorder
from jaxserve.metrics.turn import NO_COUNTS, PHASES, ExecutorCounts, Turn

FLUSH_SECONDS = 0.25


class StepRecorder:
    """Records turns; every method belongs to the engine's thread.

    Values are gathered and written when the engine is idle, or not later than FLUSH_SECONDS afterwards: a step may take
    less time than its own dozen writes.

    Args:
        instruments: written to.
        model: the served model's name.
        counts: gives what the executor has counted.
        process: measured along with it; None if another recorder does that.
    """

    def __init__(
        self,
        instruments: Instruments,
        model: str,
        counts: Callable[[], ExecutorCounts],
        process: ProcessRecorder | None = None,
    ) -> None:
        histogram = instruments.histogram
        self._step_seconds = histogram(catalogue.STEP_SECONDS).labels(model)
        self._phases = [histogram(catalogue.STEP_PHASE_SECONDS).labels(model, phase) for phase in PHASES]
        self._rows = histogram(catalogue.BATCH_ROWS).labels(model)
        self._tokens = histogram(catalogue.BATCH_TOKENS).labels(model)
        self._counters = {
            metric.name: instruments.counter(metric).labels(model)
            for metric in (
                catalogue.COMPILED_PROGRAMS,
                catalogue.LATE_COMPILES,
                catalogue.BUCKET_MISSES,
                catalogue.PADDING_TOKENS,
                catalogue.WEIGHT_CHECKS,
            )
        }
        self._of_scheduler = {
            metric.name: instruments.counter(metric).labels(model)
            for metric in (catalogue.STEP_BUDGET_RAISES, catalogue.QUEUE_ESTIMATE_MISSES, catalogue.OVERLOADS)
        }
        self._scheduled = NO_COUNTS
        self._experts = ExpertRecorder(instruments, model)
        self._counts = counts
        self._process = process
        self._counted = ExecutorCounts()
        self._turns: list[Turn] = []
        self.flush()  # what was compiled before the first step

    def turned(self, turn: Turn) -> None:
        """Record a turn."""
        self._turns.append(turn)
        if turn.idle or turn.ended - self._turns[0].ended >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered."""
        turns, self._turns = self._turns, []
        launched = [turn for turn in turns if turn.step >= 0]
        self._rows.observe_many([turn.rows for turn in launched])
        self._tokens.observe_many([turn.tokens for turn in launched])
        self._step_seconds.observe_many([turn.waited - turn.step_began for turn in turns if turn.collected >= 0])
        marks = [turn.marks for turn in turns]
        for place, phase in enumerate(self._phases):
            phase.observe_many([mark[place + 1] - mark[place] for mark in marks])
        counts = self._counts()
        _count(self._counters, counts, self._counted)
        if turns:
            _count(self._of_scheduler, turns[-1].counts, self._scheduled)
            self._scheduled = turns[-1].counts
        self._experts.record(counts.expert_tokens, everything=not turns or turns[-1].idle)
        self._counted = counts
        if self._process is not None:
            self._process.measure()


def _count(counters: Mapping[str, Counter], counts: object, before: object) -> None:
    """Add to each counter what the count of its name has grown by."""
    for name, counter in counters.items():
        more = getattr(counts, name) - getattr(before, name)
        if more:
            counter.inc(more)
