"""What was seen of one engine lately: enough for those who come late or read slowly, and no more."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from jaxserve.metrics.frame import EngineFrame, PreemptedRow, TurnRow
from jaxserve.metrics.timeline import Span

KEPT_TURNS, KEPT_SPANS, KEPT_PREEMPTIONS = 2000, 512, 256

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Position:
    """How far a watcher is: the next turn and preemption that it does not know, and the frame that it has."""

    turn: int = 0
    preemption: int = 0
    frame: int = 0


@dataclass(frozen=True, slots=True)
class News:
    """What is new since a position."""

    first_turn: int
    turns: list[TurnRow]
    spans: list[Span]
    first_preemption: int
    preempted: list[PreemptedRow]


class Record:
    """One engine's.

    Attributes:
        latest: the latest frame.
        position: that of who knows everything.
    """

    def __init__(self, first: EngineFrame) -> None:
        self._turns: deque[TurnRow] = deque(maxlen=KEPT_TURNS)
        self._preempted: deque[PreemptedRow] = deque(maxlen=KEPT_PREEMPTIONS)
        self._spans: OrderedDict[str, tuple[int, Span]] = OrderedDict()  # the latest that changed last, with its frame
        self.position = Position(first.first_turn, first.first_preemption)
        self.latest = first
        self.take(first)

    def take(self, frame: EngineFrame) -> None:
        """Add the next frame. What came before something that was lost is forgotten, so that no gap is inside of what is kept."""
        if frame.first_turn != self.position.turn:
            self._turns.clear()
        if frame.first_preemption != self.position.preemption:
            self._preempted.clear()
        self._turns.extend(frame.turns)
        self._preempted.extend(frame.preempted)
        number = self.position.frame + 1
        for span in frame.spans:
            self._spans[span.id] = number, span
            self._spans.move_to_end(span.id)
        while len(self._spans) > KEPT_SPANS:
            self._spans.popitem(last=False)
        self.latest = frame
        self.position = Position(frame.next.turn, frame.next.preemption, number)

    def since(self, seen: Position) -> News:
        turns = _last(self._turns, self.position.turn - seen.turn)
        preempted = _last(self._preempted, self.position.preemption - seen.preemption)
        spans = []
        for number, span in reversed(self._spans.values()):
            if number <= seen.frame:
                break
            spans.append(span)
        first = self.position.turn - len(turns), self.position.preemption - len(preempted)
        return News(first[0], turns, spans[::-1], first[1], preempted)


def _last(kept: deque[Item], count: int) -> list[Item]:
    return list(islice(reversed(kept), max(count, 0)))[::-1]
