"""A look at an engine, between two of its turns: what is new since the last one, and how it stands."""

from __future__ import annotations

import time

from jaxserve.engine.core import EngineCore
from jaxserve.engine.observer import EngineObserver
from jaxserve.metrics.frame import (
    MAX_SPANS,
    MAX_TURNS,
    Cursor,
    EngineFrame,
    EngineLook,
    EngineSummary,
    ProgramsNow,
    SpeculationNow,
    TurnRow,
)


def look_at(core: EngineCore, observer: EngineObserver, cursor: Cursor) -> EngineLook:
    """What an engine answers to who looked as far as `cursor`: nothing new unless that is its own."""
    scheduler, life = core.scheduler, observer.timeline.life
    summary = EngineSummary(life, observer.model, scheduler.num_running, scheduler.num_waiting)
    return EngineLook([summary], _frame(core, observer, cursor) if cursor.life == life else None)


def _frame(core: EngineCore, observer: EngineObserver, cursor: Cursor) -> EngineFrame:
    timeline, scheduler = observer.timeline, core.scheduler
    now = scheduler.clock.now()
    turns = timeline.turns_since(cursor.turn, MAX_TURNS)
    first_preemption, preempted = scheduler.view.preempted(cursor.preemption)
    executor, counts = observer.counted, scheduler.counts()
    drafts = counts.spec_decode_num_drafts, counts.spec_decode_num_draft_tokens, counts.spec_decode_num_accepted_tokens
    programs = executor.compiled_programs, executor.late_compiles, executor.bucket_misses, executor.padding_tokens
    return EngineFrame(
        clock=now,
        unix=time.time(),
        next=Cursor(timeline.life, timeline.num_turns, timeline.num_changes, first_preemption + len(preempted)),
        first_turn=timeline.num_turns - len(turns),
        turns=[TurnRow.of(turn) for turn in turns],
        generated=timeline.num_generated,
        spans=timeline.spans_since(cursor.change, MAX_SPANS),
        first_preemption=first_preemption,
        preempted=preempted,
        now=scheduler.view.snapshot(now),
        programs=ProgramsNow(*programs),
        speculation=SpeculationNow(counts.method, *drafts),
        weight_version=core.weight_version,
        paused=core.pause.is_on,
    )
