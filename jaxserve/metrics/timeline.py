"""The last turns of an engine and the requests in them, kept for whoever wants to see what it was doing."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from jaxserve.metrics.turn import Arrival, SequenceUpdate, Turn

MAX_TURNS = 20_000
MAX_SPANS = 20_000
MAX_CHANGES = 4096
ABORTED = "abort"

Kept = TypeVar("Kept")


@dataclass(slots=True)
class Span:
    """One sequence in the engine. Times are of the engine's clock, seconds; None is not yet.

    Attributes:
        id: its id: "request/.../index".
        prompt_tokens, tokens: in its prompt, and in its output so far.
        arrival: when its request came.
        started: when it had its first step.
        first_token: when its first token came.
        ended: when it ended.
        outcome: a finish reason, or an error's code; empty while it runs.
        tenant: whose it is.
    """

    id: str
    service_class: str
    prompt_tokens: int
    arrival: float
    tokens: int = 0
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None
    outcome: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class TimelineWindow:
    """What an engine did from `start` to `end` (clock time). `unix` is the time since 1970 at `end`, seconds.

    `num_pages` pages are in its KV cache. Turns are in order; spans are those that touch the window.
    """

    start: float
    end: float
    unix: float
    num_pages: int
    turns: list[Turn]
    spans: list[Span]


class Timeline:
    """Keeps turns and spans for some seconds, at most MAX_TURNS and MAX_SPANS of them. Belongs to the engine's thread.

    Attributes:
        life: tells its numbers from those of every other timeline.
        num_turns: since its start.
        num_generated: output tokens, since its start.
        num_changes: times that a span came, had its first token or ended, since its start.
    """

    def __init__(self, seconds: float, num_pages: int) -> None:
        self._seconds = seconds
        self._num_pages = num_pages
        self._turns: deque[Turn] = deque(maxlen=MAX_TURNS)
        self._ended: deque[Span] = deque(maxlen=MAX_SPANS)
        self._active: dict[str, Span] = {}
        self._changed: deque[Span] = deque(maxlen=MAX_CHANGES)
        self.life = uuid.uuid4().hex[:12]
        self.num_turns = 0
        self.num_generated = 0
        self._generated = 0  # before the latest turn
        self.num_changes = 0

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        for one in arrivals:
            span = Span(one.id, one.service_class, one.prompt_tokens, one.arrival, tenant=one.tenant)
            self._active[one.id] = span
            self._change(span)

    def updated(self, updates: Iterable[SequenceUpdate], now: float) -> None:
        for update in updates:
            span = self._active.get(update.id)
            if update.token is not None:
                self.num_generated += 1
            if span is None:
                continue
            if update.token is not None:
                span.tokens += 1
                if span.first_token is None:
                    span.started, span.first_token = span.arrival + update.queue_time, now
                    self._change(span)
            if update.finish_reason is not None:
                self._end(span, update.finish_reason, now)
            elif update.error is not None:
                self._end(span, str(getattr(update.error, "code", type(update.error).__name__)), now)

    def aborted(self, ids: Iterable[str], now: float) -> None:
        for name in ids:
            if name in self._active:
                self._end(self._active[name], ABORTED, now)

    def turned(self, turn: Turn) -> None:
        turn.generated, self._generated = self.num_generated - self._generated, self.num_generated
        self._turns.append(turn)
        self.num_turns += 1
        oldest = turn.ended - self._seconds
        while self._turns[0].ended < oldest:
            self._turns.popleft()
        while self._ended and (self._ended[0].ended or 0.0) < oldest:
            self._ended.popleft()

    def window(self, seconds: float, now: float, unix: float) -> TimelineWindow:
        """The last seconds, as far as they are kept; `now` is clock time, `unix` the same moment since 1970.

        Nothing in it changes any more: it is read in other threads.
        """
        start = now - min(seconds, self._seconds)
        return TimelineWindow(
            start=start,
            end=now,
            unix=unix,
            num_pages=self._num_pages,
            turns=[turn for turn in self._turns if turn.ended >= start],
            spans=[
                *(span for span in self._ended if span.ended is None or span.ended >= start),
                *(replace(span) for span in self._active.values()),
            ],
        )

    def turns_since(self, first: int, most: int) -> list[Turn]:
        """The last turns, in order: those from a number on, as far as they are kept, and no more than `most`."""
        return _last(self._turns, min(self.num_turns - first, most))

    def spans_since(self, first: int, most: int) -> list[Span]:
        """Spans that changed from a number on, as far as that is kept, each once; no more than the `most` latest.

        Nothing in them changes any more: they are read in other threads.
        """
        changed = _last(self._changed, self.num_changes - first)
        latest = {id(span): span for span in reversed(changed)}
        return [replace(span) for span in islice(latest.values(), most)][::-1]

    def _change(self, span: Span) -> None:
        self._changed.append(span)
        self.num_changes += 1

    def _end(self, span: Span, outcome: str, now: float) -> None:
        span.outcome, span.ended = outcome, now
        del self._active[span.id]
        self._ended.append(span)
        self._change(span)


def _last(kept: deque[Kept], count: int) -> list[Kept]:
    """The last so many, in order; a deque is quick at its ends only."""
    return list(islice(reversed(kept), max(count, 0)))[::-1]
