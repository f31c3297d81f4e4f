"""What an engine tells those who watch it think: what is new since they looked last, and how things stand.

Times are of the engine's clock, seconds. Nothing here is a prompt or an output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from jaxserve.metrics.timeline import Span
from jaxserve.metrics.turn import Turn

MAX_TURNS = 1000  # of one look; older ones are left out, which their numbers show
MAX_SPANS = 512  # of one look
MAX_ROWS = 256  # running sequences that are listed
MAX_QUEUES = 64  # tenants of a class that are listed


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """How far somebody has looked at one engine. Numbers count from its start.

    Attributes:
        life: of that engine, which no other has; empty before the first look.
        turn, change, preemption: the next that it does not know.
    """

    life: str = ""
    turn: int = 0
    change: int = 0
    preemption: int = 0


class TurnRow(msgspec.Struct, frozen=True, array_like=True):
    """A Turn, in few bytes. Times other than `began` are microseconds after it; see Turn for what they mean."""

    began: float
    planned: int
    launched: int
    waited: int
    applied: int
    ended: int
    step: int
    rows: int
    tokens: int
    prefill_tokens: int
    drafts: int
    collected: int
    accepted: int
    step_began: int
    running: int
    waiting: int
    pages_free: int
    collected_first: bool
    generated: int

    @classmethod
    def of(cls, turn: Turn) -> TurnRow:
        began = turn.began
        marks = (turn.planned, turn.launched, turn.waited, turn.applied, turn.ended, turn.step_began)
        planned, launched, waited, applied, ended, step_began = [_microseconds(mark - began) for mark in marks]
        return cls(
            round(began, 6),
            planned,
            launched,
            waited,
            applied,
            ended,
            turn.step,
            turn.rows,
            turn.tokens,
            turn.prefill_tokens,
            turn.drafts,
            turn.collected,
            turn.accepted,
            step_began if turn.collected >= 0 else 0,
            turn.running,
            turn.waiting,
            turn.pages_free,
            turn.collected_first,
            turn.generated,
        )


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6) if math.isfinite(seconds) else 0  # whatever a clock says


class PreemptedRow(msgspec.Struct, frozen=True):
    """A sequence that gave its pages back, why, and for which other; see the scheduler's Preemption."""

    id: str
    tenant: str
    service_class: str
    time: float
    tokens_lost: int
    pages_gained: int
    swapped: bool
    reason: str
    needed_by: str


class RunningRow(msgspec.Struct, frozen=True):
    """A sequence that runs.

    Attributes:
        admitted: when it left the queue first.
        computed: tokens in the cache once every step in flight has run.
        pages: that it holds, shared ones too.
        preemptions: times that it gave them back.
    """

    id: str
    service_class: str
    tenant: str
    arrival: float
    admitted: float
    prompt_tokens: int
    computed: int
    output_tokens: int
    pages: int
    preemptions: int


class QueueRow(msgspec.Struct, frozen=True):
    """How many sequences of a tenant wait in a class."""

    service_class: str
    tenant: str
    waiting: int


class PagesNow(msgspec.Struct, frozen=True):
    """KV pages: `running` + `cached` + `free` == `total`.

    Attributes:
        running: that sequences hold, and pins.
        cached: that nobody holds, but with prefixes that may be found.
        pinned: of the running ones, those that are kept for prompts to come.
        swapped, swap_total: that wait in host memory, and how many may.
        size: tokens of a page.
    """

    total: int
    running: int
    cached: int
    free: int
    pinned: int
    swapped: int
    swap_total: int
    size: int


class PaceNow(msgspec.Struct, frozen=True):
    """Promises to interactive requests, seconds; 0 for none.

    Attributes:
        ttft_target, itl_target: times to the first token and between tokens that were configured.
        itl_kept: the time between tokens that can be kept: longer where no step is short enough.
        due, broken: promises that came due lately, and those that were not kept; the longer ago, the less they count.
    """

    ttft_target: float
    itl_target: float
    itl_kept: float
    due: float
    broken: float


class Snapshot(msgspec.Struct, frozen=True):
    """How a scheduler stands.

    Attributes:
        rows, more_rows: sequences that run, and how many of those are not listed.
        queues, more_waiting: sequences that wait by class and tenant, and how many are not listed: of further tenants, or held
            behind the first of their request.
        prefix_queries, prefix_hits: tokens looked up in the prefix cache, and found, since the start.
        preemptions: since the start, by reason.
    """

    running: int
    waiting: int
    rows: list[RunningRow]
    more_rows: int
    queues: list[QueueRow]
    more_waiting: int
    pages: PagesNow
    prefix_queries: int
    prefix_hits: int
    preemptions: dict[str, int]
    lost_tokens: int
    pace: PaceNow


class ProgramsNow(msgspec.Struct, frozen=True):
    """What the executor counted since its start; see the metrics of the same names."""

    compiled_programs: int
    late_compiles: int
    bucket_misses: int
    padding_tokens: int


class SpeculationNow(msgspec.Struct, frozen=True):
    """What became of guesses since the start; see the metrics of the same names."""

    method: str
    drafts: int
    draft_tokens: int
    accepted_tokens: int


class EngineFrame(msgspec.Struct, frozen=True):
    """What is new of an engine, and how it stands.

    Attributes:
        clock, unix: now, by the engine's clock and since 1970.
        next: where to look from the next time.
        first_turn: number of the first of `turns`; the others follow without a gap.
        generated: output tokens since the start.
        spans: sequences that came, had their first token or ended, as they are now.
        first_preemption: number of the first of `preempted`.
        weight_version: of the weights that steps run with; None where they have no name.
        paused: whether no step runs until the engine is resumed.
    """

    clock: float
    unix: float
    next: Cursor
    first_turn: int
    turns: list[TurnRow]
    generated: int
    spans: list[Span]
    first_preemption: int
    preempted: list[PreemptedRow]
    now: Snapshot
    programs: ProgramsNow
    speculation: SpeculationNow
    weight_version: int | str | None
    paused: bool


class EngineSummary(msgspec.Struct, frozen=True):
    """One engine of those that can be looked at: its life, the model's name, and sequences."""

    life: str
    model: str
    running: int
    waiting: int


class EngineLook(msgspec.Struct, frozen=True):
    """What engines answer to a look: which there are, and the frame of the one that the cursor is of, if it is there."""

    engines: list[EngineSummary]
    frame: EngineFrame | None = None

    @classmethod
    def merged(cls, looks: Sequence[EngineLook]) -> EngineLook:
        """Of several engines."""
        frames = [one.frame for one in looks if one.frame is not None]
        return cls([engine for one in looks for engine in one.engines], frames[0] if frames else None)
