"""What a scheduler's sequences still ask of it, as those see it who decide how many replicas there should be."""

from __future__ import annotations

from jaxserve.routing.demand import OUTPUT_WORK, PROMPT_WORK, Demand
from jaxserve.scheduler.request import Sequence, Status
from jaxserve.scheduler.scheduler import Scheduler


def demand_of(scheduler: Scheduler) -> Demand:
    """The demand now. Outputs count whole until they end: a sequence holds its place in every step until then.

    Looks at every unfinished sequence, so the thread that owns the scheduler asks, and not often.
    """
    prompts = outputs = 0.0
    for sequence in scheduler.sequences.values():
        prompts += _uncomputed(sequence)
        if sequence.task.generates:
            outputs += max(scheduler.lengths.expected(sequence.request), sequence.num_output)
    promised, broken = scheduler.promises.lately(scheduler.clock.now())
    work = PROMPT_WORK * prompts
    return Demand(work + OUTPUT_WORK * outputs, work, promised, broken)


def _uncomputed(sequence: Sequence) -> int:
    """Tokens of its prompt, as far as it is known what need not be computed."""
    if sequence.status is Status.RUNNING or sequence.swap_slots:
        return max(sequence.num_prompt - sequence.num_computed, 0)
    return max(sequence.num_prompt - sequence.num_shared, 0)
