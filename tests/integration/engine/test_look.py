"""Looking at an engine that runs, as its front ends do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jaxserve.engine.calls import Look
from jaxserve.engine.watching import watch
from jaxserve.metrics.frame import Cursor, EngineFrame
from jaxserve.metrics.instruments import Instruments
from tests.support.driven import Driven


@pytest.fixture(scope="module")
def driven() -> Iterator[Driven]:
    made = Driven()
    watch(made.built.core, "tiny", Instruments())
    yield made
    made.loop.stop()


def look(driven: Driven, cursor: Cursor) -> EngineFrame:
    frame = driven.call(Look(cursor)).frame
    assert isinstance(frame, EngineFrame)
    return frame


def test_an_engine_that_is_not_meant_only_says_that_it_is_there(driven: Driven) -> None:
    for cursor in (Cursor(), Cursor("another")):
        seen = driven.call(Look(cursor))
        assert [one.model for one in seen.engines] == ["tiny"]
        assert seen.frame is None


def test_every_turn_is_seen_once(driven: Driven) -> None:
    cursor = Cursor(driven.call(Look()).engines[0].life)
    steps: list[int] = []
    turns = 0
    tokens: dict[str, int] = {}
    for count in (3, 20, 40):
        name = driven.add(count)
        driven.finish()
        frame = look(driven, cursor)
        assert frame.first_turn == cursor.turn == turns
        turns += len(frame.turns)
        steps += [turn.step for turn in frame.turns if turn.step >= 0]
        assert (frame.next.turn, frame.next.life) == (turns, cursor.life)
        (span,) = frame.spans
        tokens[name] = span.tokens
        assert (span.id, span.tokens, span.outcome) == (name, count, "length")
        if name == next(iter(tokens)):  # the others find its prompt in the cache
            assert frame.turns[0].prefill_tokens == span.prompt_tokens == frame.turns[0].tokens
        assert frame.now.pages.running == frame.now.running == frame.now.waiting == 0
        cursor = frame.next
    assert steps == list(range(len(steps)))
    idle = look(driven, cursor)
    assert (idle.turns, idle.spans, idle.preempted, idle.next) == ([], [], [], cursor)


def test_what_runs_is_listed(driven: Driven) -> None:
    cursor = Cursor(driven.call(Look()).engines[0].life)
    name = driven.add(60)
    driven.said.get(timeout=60)
    frame = look(driven, cursor)
    (row,) = frame.now.rows
    assert (row.id, row.pages > 0, row.output_tokens > 0) == (name, True, True)
    assert frame.now.pages.running + frame.now.pages.cached + frame.now.pages.free == frame.now.pages.total
    assert frame.programs.late_compiles == 0
    driven.finish()
