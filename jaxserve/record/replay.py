"""Runs a recording again, on any executor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxserve.clock import Clock
from jaxserve.errors import ConfigError
from jaxserve.executor.base import Capabilities, Executor
from jaxserve.record.rebuild import PreparedStep, Rebuilder, spare_spans
from jaxserve.record.recording import RecordedStep, Recording
from jaxserve.sampling.options import MASKED, STANDARD
from jaxserve.step.plan import Bools, Ints, MoveKind, Plan, StepResult

_ANY: Ints = np.full((0, 0), -1, np.int32)  # masks of a step that never got any: its tokens are compared with none
_NO_ROWS: Bools = np.zeros(0, np.bool_)


@dataclass(frozen=True, slots=True)
class Difference:
    """A token that is not the recorded one.

    Attributes:
        sequence: id.
        position: of the token in its sequence, prompt included, from 0.
        recorded, replayed: the tokens.
    """

    sequence: str
    position: int
    recorded: int
    replayed: int


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """A step that ran again.

    Attributes:
        plan: as it was recorded.
        seconds: from its submission to its result, with nothing else in flight.
        recorded_seconds: see RecordedStep; None if it had no result.
        differences: those that were not equal.
        error: what the step raised; nothing was run after it.
    """

    plan: Plan
    seconds: float
    recorded_seconds: float | None
    num_compared: int = 0
    differences: tuple[Difference, ...] = ()
    error: Exception | None = None


def replay(recording: Recording, executor: Executor, clock: Clock, *, compare: bool) -> Iterator[ReplayedStep]:
    """Run the steps of a recording one after another.

    Args:
        recording: what to run.
        executor: one that has run nothing yet.
        clock: measures the steps.
        compare: whether the executor computes tokens. Then what the first plans find in its cache is computed before them, and
            every token is compared with the recorded one. Once a token differs, what follows it in its sequence may differ too.

    Yields a step at a time; the last one holds what the executor raised, if it did.

    Raises ConfigError: the executor cannot run these plans.
    """
    limits = executor.capabilities()
    _check(recording, limits, compare=compare)
    rebuilder = Rebuilder(recording.sequences, recording.header.capabilities, limits.max_num_batched_tokens)
    for step in recording.steps:
        prepared = rebuilder.prepare(step) if compare else PreparedStep((), step.plan, _NO_ROWS)
        started = clock.now()
        try:
            for prelude in prepared.preludes:
                executor.submit(prelude).result()
            started = clock.now()
            handle = executor.submit(prepared.plan)
            if (prepared.plan.samples & (STANDARD.column(prepared.plan.sampling, MASKED) != 0)).any():
                handle.choose(_ANY if step.masks is None else step.masks)
            result = handle.result()
        except Exception as error:  # whatever an executor dies of is what a replay is looking for
            yield ReplayedStep(step.plan, clock.now() - started, step.seconds, error=error)
            return
        seconds = clock.now() - started
        compared, differences = _compare(step, result, prepared.comparable)
        yield ReplayedStep(step.plan, seconds, step.seconds, compared, differences)


def _check(recording: Recording, limits: Capabilities, *, compare: bool) -> None:
    had = recording.header.capabilities
    if compare and any(step.plan.guesses is not None for step in recording.steps):
        raise ConfigError(
            "the recording has guesses of a draft model, which only its device knew: its tokens cannot be compared, but its "
            "times can be predicted"
        )
    if compare and any(step.plan.adapters is not None for step in recording.steps):
        raise ConfigError(
            "the recording has rows with adapters, whose weights it does not hold: its tokens cannot be compared, but its times "
            "can be predicted"
        )
    if compare and limits.windows != had.windows:
        raise ConfigError(f"the recording has layers with windows of {had.windows} tokens, the executor of {limits.windows}")
    if compare and limits.row_options != had.row_options:
        options = ", ".join(had.row_options), ", ".join(limits.row_options)
        raise ConfigError(f"the recording has rows with the options {options[0]}, the executor with {options[1]}")
    if limits.page_size != had.page_size:
        raise ConfigError(f"the recording has pages of {had.page_size} tokens, the executor of {limits.page_size}")
    needed = ["max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_pages"]
    if any(move.kind is not MoveKind.COPY for step in recording.steps for move in step.plan.moves):
        needed.append("swap_slots")
    spare = sum(spare_spans(had, limits.max_num_batched_tokens)) if compare else 0
    for name in needed:
        wanted, there = getattr(had, name) + (spare if name == "num_pages" else 0), getattr(limits, name)
        if there < wanted:
            raise ConfigError(f"the recording needs {name} of {wanted}, the executor has {there}")


def _compare(step: RecordedStep, result: StepResult, comparable: Bools) -> tuple[int, tuple[Difference, ...]]:
    if step.result is None or not len(comparable):
        return 0, ()
    plan, recorded = step.plan, step.result
    rows = np.flatnonzero(plan.samples & comparable)
    compared = np.minimum(recorded.num_tokens, result.num_tokens)[rows]
    differs = (recorded.tokens[rows] != result.tokens[rows]) & (np.arange(recorded.tokens.shape[1]) < compared[:, None])
    firsts = {int(row): int(np.argmax(wrong)) for row, wrong in zip(rows, differs, strict=True) if wrong.any()}
    differences = tuple(
        Difference(
            plan.ids[row],
            int(plan.kv_length[row] - plan.num_drafts[row]) + index,
            int(recorded.tokens[row, index]),
            int(result.tokens[row, index]),
        )
        for row, index in firsts.items()
    )
    return int(compared.sum()), differences
