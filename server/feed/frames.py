"""What watchers are told: JSON, a few times a second."""

from __future__ import annotations

import msgspec

from jaxserve.engine.death import EngineDeath
from jaxserve.metrics.frame import EngineSummary, PreemptedRow, ProgramsNow, Snapshot, SpeculationNow, TurnRow
from jaxserve.metrics.timeline import Span


class FeedFrame(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of one engine since the frame before, and how it stands. Times are of its clock, seconds.

    Attributes:
        engine, model: its life (another one each time it is started), and the name of its model; empty while there is none.
        engines: all that there are.
        interval: seconds between two frames.
        clock, unix: when this was so, by the engine's clock and since 1970.
        first_turn: number of the first of `turns`; where it is not the one after the last that came, some are lost.
        generated: output tokens since the engine's start.
        first_preemption: the same for `preempted`.
        now, programs, speculation: None while there is no engine.
        stalled: seconds for which the engine has not turned, if that is why there is nothing new; else 0.
        failure: why there is no engine; None where there is one.
        death: what an engine died of, the latest of which that is known.
    """

    engine: str = ""
    model: str = ""
    engines: list[EngineSummary]
    interval: float
    clock: float = 0.0
    unix: float = 0.0
    first_turn: int = 0
    turns: list[TurnRow] = []
    generated: int = 0
    spans: list[Span] = []
    first_preemption: int = 0
    preempted: list[PreemptedRow] = []
    now: Snapshot | None = None
    programs: ProgramsNow | None = None
    speculation: SpeculationNow | None = None
    weight_version: int | str | None = None
    paused: bool = False
    stalled: float = 0.0
    failure: str | None = None
    death: EngineDeath | None = None
