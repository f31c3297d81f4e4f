"""What is kept of one engine for its watchers: each turn once, in order, and gaps that show."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from jaxserve.metrics.frame import Cursor, EngineFrame, PreemptedRow, TurnRow
from jaxserve.metrics.timeline import Span
from server.feed import record as module
from server.feed.record import Position, Record

EMPTY: dict[str, Any] = msgspec.json.decode(
    b"""{"clock": 1.0, "unix": 2.0, "next": ["l", 0, 0, 0], "first_turn": 0, "turns": [],
    "generated": 0, "spans": [], "first_preemption": 0,
    "preempted": [], "now": {"running": 0, "waiting": 0, "rows": [], "more_rows": 0, "queues": [], "more_waiting": 0,
    "pages": {"total": 9, "running": 0, "cached": 0, "free": 9, "pinned": 0, "swapped": 0, "swap_total": 0, "size": 4},
    "prefix_queries": 0, "prefix_hits": 0, "preemptions": {}, "lost_tokens": 0,
    "pace": {"ttft_target": 0.0, "itl_target": 0.0, "itl_kept": 0.0, "due": 0.0, "broken": 0.0}},
    "programs": {"compiled_programs": 0, "late_compiles": 0, "bucket_misses": 0, "padding_tokens": 0},
    "speculation": {"method": "none", "drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}, "weight_version": null,
    "paused": false}"""
)


def turn(number: int) -> TurnRow:
    return TurnRow(float(number), 1, 2, 3, 4, 5, number, 1, 1, 0, 0, number - 1, 0, 0, 1, 0, 9, False, 1)


def frame(turns: range, *spans: str, preempted: range = range(0)) -> EngineFrame:
    cursor = Cursor("l", turns.stop, 0, preempted.stop)
    rows = [PreemptedRow(str(number), "", "batch", 1.0, 2, 3, False, "pages", "x") for number in preempted]
    return msgspec.structs.replace(
        msgspec.convert(EMPTY, EngineFrame),
        next=cursor,
        first_turn=turns.start,
        turns=[turn(number) for number in turns],
        spans=[Span(name, "batch", 3, 0.0) for name in spans],
        first_preemption=preempted.start,
        preempted=rows,
    )


@pytest.mark.parametrize("seed", range(20))
def test_whoever_reads_how_slowly_misses_nothing_and_sees_nothing_twice(seed: int) -> None:
    chance = random.Random(seed)
    record = Record(frame(range(5, 5)))
    readers = {name: (Position(5), list[int](), dict[str, None]()) for name in range(3)}
    turns = 5
    for number in range(60):
        more = chance.randrange(6)
        record.take(frame(range(turns, turns + more), f"r{number}"))
        turns += more
        for name, (seen, numbers, spans) in readers.items():
            if chance.randrange(3) < name:
                continue
            news = record.since(seen)
            assert news.first_turn == seen.turn
            numbers += [one.step for one in news.turns]
            assert not spans.keys() & {one.id for one in news.spans}
            spans.update((one.id, None) for one in news.spans)
            readers[name] = record.position, numbers, spans
    for seen, numbers, spans in readers.values():
        numbers += [one.step for one in record.since(seen).turns]
        spans.update((one.id, None) for one in record.since(seen).spans)
        assert numbers == list(range(5, turns))
        assert list(spans) == [f"r{number}" for number in range(60)]


def test_what_the_engine_lost_shows_as_a_gap() -> None:
    record = Record(frame(range(3)))
    seen = record.position
    record.take(frame(range(7, 9), preempted=range(4, 6)))
    news = record.since(seen)
    assert (news.first_turn, [one.step for one in news.turns]) == (7, [7, 8])
    assert (news.first_preemption, [one.id for one in news.preempted]) == (4, ["4", "5"])
    assert record.since(Position()).first_turn == 7, "turns on both sides of a gap would look like neighbours"


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEPT_TURNS", "KEPT_SPANS", "KEPT_PREEMPTIONS"):
        monkeypatch.setattr(module, name, 3)
    record = Record(frame(range(2), "a", "b", preempted=range(2)))
    seen = record.position
    record.take(frame(range(2, 9), "c", "a", "d", "e", preempted=range(2, 8)))
    news = record.since(seen)
    assert (news.first_turn, len(news.turns)) == (6, 3)
    assert (news.first_preemption, len(news.preempted)) == (5, 3)
    assert [one.id for one in news.spans] == ["a", "d", "e"]


def test_a_span_that_changed_again_comes_once() -> None:
    record = Record(frame(range(0), "a", "b"))
    seen = record.position
    record.take(frame(range(0), "a"))
    record.take(frame(range(0), "a", "c"))
    assert [one.id for one in record.since(seen).spans] == ["a", "c"]
    assert [one.id for one in record.since(Position()).spans] == ["b", "a", "c"]
