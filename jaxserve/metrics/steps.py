"""Records the steps of an engine: time, phases, size, the experts visited, and what was computed for nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest

from prometheus_client import Counter

from jaxserve.metrics import catalogue
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.process import ProcessRecorder
from jaxserve.metrics.turn import NO_COUNTS, PHASES, ExecutorCounts, LayerTokens, Turn

FLUSH_SECONDS = 0.25

AT_ONCE = 512
"""Series that a busy engine writes at a time: a large model has ten thousand, and a write takes microseconds."""


class StepRecorder:
    """Records turns; every method belongs to the engine's thread.

    Values are gathered and written when the engine is idle, or not later than FLUSH_SECONDS afterwards: a step may take
    less time than its own dozen writes.

    Attributes:
        counted: what the executor had counted when values were written last.

    Args:
        counts: gives what the executor has counted.
        process: measured along with it; None if another recorder does that.
        method: who guesses tokens.
    """

    def __init__(
        self,
        instruments: Instruments,
        model: str,
        counts: Callable[[], ExecutorCounts],
        process: ProcessRecorder | None = None,
        *,
        method: str = NO_COUNTS.method,
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
                catalogue.SWAPPED_OUT_PAGES,
                catalogue.SWAPPED_IN_PAGES,
                catalogue.WEIGHT_CHECKS,
            )
        }
        self._of_scheduler = {
            metric.name: instruments.counter(metric).labels(model)
            for metric in (
                catalogue.STEP_BUDGET_RAISES,
                catalogue.QUEUE_ESTIMATE_MISSES,
                catalogue.OVERLOADS,
                catalogue.MASKED_ROWS,
                catalogue.MASK_SECONDS,
                catalogue.FORCED_TOKENS,
                catalogue.ADAPTER_LOADS,
            )
        } | {
            metric.name: instruments.counter(metric).labels(model, method)
            for metric in (
                catalogue.SPEC_DRAFTS,
                catalogue.SPEC_DRAFT_TOKENS,
                catalogue.SPEC_ACCEPTED_TOKENS,
                catalogue.SPEC_SECONDS,
            )
        }
        self._scheduled = NO_COUNTS
        self._accepted_at = partial(instruments.counter(catalogue.SPEC_ACCEPTED_PER_POS).labels, model, method)
        self._experts = ExpertRecorder(instruments, model)
        self._counts = counts
        self._process = process
        self.counted = ExecutorCounts()
        self._turns: list[Turn] = []
        self.flush()  # what was compiled before the first step

    def turned(self, turn: Turn) -> None:
        self._turns.append(turn)
        if turn.idle or turn.ended - self._turns[0].ended >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        turns, self._turns = self._turns, []
        launched = [turn for turn in turns if turn.step >= 0]
        self._rows.observe_many([turn.rows for turn in launched])
        self._tokens.observe_many([turn.tokens for turn in launched])
        self._step_seconds.observe_many([turn.waited - turn.step_began for turn in turns if turn.collected >= 0])
        spans = [turn.phases for turn in turns]
        for name, phase in zip(PHASES, self._phases, strict=True):
            phase.observe_many([end - begin for begin, end in (phases[name] for phases in spans)])
        counts = self._counts()
        _count(self._counters, counts, self.counted)
        if turns:
            _count(self._of_scheduler, turns[-1].counts, self._scheduled)
            for position, more in enumerate(_added(turns[-1].counts.accepted_at, self._scheduled.accepted_at)):
                self._accepted_at(str(position)).inc(more)
            self._scheduled = turns[-1].counts
        self._experts.record(counts.expert_tokens, everything=not turns or turns[-1].idle)
        self.counted = counts
        if self._process is not None:
            self._process.measure()


def _added(counts: Sequence[int], before: Sequence[int]) -> list[int]:
    """What was added to counts that may have become more."""
    return [count - old for count, old in zip_longest(counts, before, fillvalue=0)]


def _count(counters: Mapping[str, Counter], counts: object, before: object) -> None:
    for name, counter in counters.items():
        more = getattr(counts, name) - getattr(before, name)
        if more:
            counter.inc(more)


class ExpertRecorder:
    """Writes to the series of each layer and expert what was added since it was written last, in turn."""

    def __init__(self, instruments: Instruments, model: str) -> None:
        self._counter = instruments.counter(catalogue.EXPERT_TOKENS)
        self._model = model
        self._series: list[Counter] = []
        self._written: list[int] = []
        self._next = 0

    def record(self, layers: Sequence[LayerTokens], *, everything: bool) -> None:
        """Take the counts, of the same layers every time; write AT_ONCE series, or all."""
        tokens = list(chain.from_iterable(counts for _, counts in layers))
        if not self._series:
            places = [(str(layer), str(expert)) for layer, counts in layers for expert in range(len(counts))]
            self._series = [self._counter.labels(self._model, *place) for place in places]
            self._written = [0] * len(places)
        first = 0 if everything else self._next
        last = len(tokens) if everything else min(first + AT_ONCE, len(tokens))
        for place in range(first, last):
            more = tokens[place] - self._written[place]
            if more:
                self._series[place].inc(more)
                self._written[place] = tokens[place]
        self._next = last % max(len(tokens), 1)
