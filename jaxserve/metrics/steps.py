"""Records the steps of an engine: their time, their phases, their size, and what was computed for nothing."""

from __future__ import annotations

from collections.abc import Callable

from jaxserve.metrics import catalogue
from jaxserve.metrics.experts import ExpertRecorder
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.process import ProcessRecorder
from jaxserve.metrics.turn import PHASES, ExecutorCounts, Turn

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
        self._budget_raises = instruments.counter(catalogue.STEP_BUDGET_RAISES).labels(model)
        self._raised = 0
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
        if turns and turns[-1].budget_raises > self._raised:
            self._budget_raises.inc(turns[-1].budget_raises - self._raised)
            self._raised = turns[-1].budget_raises
        counts = self._counts()
        for name, counter in self._counters.items():
            more = getattr(counts, name) - getattr(self._counted, name)
            if more:
                counter.inc(more)
        self._experts.record(counts.expert_tokens, everything=not turns or turns[-1].idle)
        self._counted = counts
        if self._process is not None:
            self._process.measure()
