"""What an engine and its executor tell of their work, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

PHASES = ("plan", "launch", "wait", "apply", "emit")


@dataclass(frozen=True, slots=True)
class SchedulerCounts:
    """What a scheduler counted since its start; see the metrics of the same names. `method` is who guesses tokens."""

    step_budget_raises: int = 0
    queue_estimate_misses: int = 0
    overloads: int = 0
    masked_rows: int = 0
    mask_seconds: float = 0.0
    forced_tokens: int = 0
    adapter_loads: int = 0
    spec_decode_num_drafts: int = 0
    spec_decode_num_draft_tokens: int = 0
    spec_decode_num_accepted_tokens: int = 0
    spec_decode_seconds: float = 0.0
    accepted_at: tuple[int, ...] = ()
    method: str = "none"


NO_COUNTS = SchedulerCounts()


@dataclass(slots=True)
class Turn:
    """One turn of the engine: it plans and launches a step, waits for the step before it and applies that.

    Attributes:
        began, planned, launched, waited, applied, ended: clock times at the turn's start and after each of its phases, seconds.
        step: number of the step it launched; -1 for none.
        rows, tokens: of that step.
        drafts: how many of its tokens are guesses.
        collected: number of the step whose result it took; -1 for none.
        accepted: of that step's guesses, those that were right.
        generated: output tokens that came in it; whoever keeps the turn counts them.
        prefill_tokens: of the step it launched, those of rows that compute their prompts.
        step_began: when that step began on the device: at its launch, or when the one before it was over.
        running, waiting: sequences, after the turn.
        pages_free: free pages, after the turn.
        preemptions: of sequences since the engine's start.
        counts: of its scheduler, after the turn.
        idle: whether nothing is left to do.
        collected_first: whether it took the step before it in before it planned its own.
    """

    began: float
    planned: float = 0.0
    launched: float = 0.0
    waited: float = 0.0
    applied: float = 0.0
    ended: float = 0.0
    step: int = -1
    rows: int = 0
    tokens: int = 0
    collected: int = -1
    step_began: float = 0.0
    running: int = 0
    waiting: int = 0
    pages_free: int = 0
    preemptions: int = 0
    counts: SchedulerCounts = NO_COUNTS
    idle: bool = False
    collected_first: bool = False
    drafts: int = 0
    accepted: int = 0
    prefill_tokens: int = 0
    generated: int = 0

    @property
    def phases(self) -> dict[str, tuple[float, float]]:
        """Clock times at which each of PHASES began and ended."""
        taking = {"wait": self.waited, "apply": self.applied}
        giving = {"plan": self.planned, "launch": self.launched}
        ends = {**(taking | giving if self.collected_first else giving | taking), "emit": self.ended}
        return dict(zip(ends, pairwise((self.began, *ends.values())), strict=True))


class LayerTokens(NamedTuple):
    """A layer that has experts, by its number, and how many tokens visited each of them."""

    layer: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExecutorCounts:
    """What an executor counted since its start; see the metrics of the same names.

    What devices count, `expert_tokens`, may lack the latest steps while others are in flight.
    """

    compiled_programs: int = 0
    late_compiles: int = 0
    bucket_misses: int = 0
    padding_tokens: int = 0
    swapped_out_pages: int = 0
    swapped_in_pages: int = 0
    weight_checks: int = 0
    expert_tokens: tuple[LayerTokens, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A sequence that an engine took in: its id, service class, prompt tokens, clock time of arrival, and tenant."""

    id: str
    service_class: str
    prompt_tokens: int
    arrival: float
    tenant: str = ""


class SequenceUpdate(Protocol):
    """What a listener reads of the scheduler's Update: the sequence, its new token, its end, and its time in the queue."""

    @property
    def id(self) -> str: ...
    @property
    def token(self) -> int | None: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def error(self) -> Exception | None: ...
    @property
    def queue_time(self) -> float: ...
