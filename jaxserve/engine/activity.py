"""What an engine does now and how long that should take, so that whoever watches it can tell a long step from a hang."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from jaxserve.step.plan import Plan

_DECAY = 0.05  # of the difference, toward a shorter step


class Activity(msgspec.Struct, frozen=True, array_like=True):
    """What the engine's loop does.

    Attributes:
        began: time by the machine's monotonic clock.
        expected: seconds that it should take; None for work of unknown length: a compilation, a call such as a weight update.
    """

    began: float
    expected: float | None = None

    def lateness(self, now: float, silent: float = 0.0) -> Lateness:
        """Of an engine that was heard of `silent` seconds ago."""
        if self.expected is None:
            return Lateness(silent, 0.0, known=False)
        return Lateness(silent, max(now - self.began - self.expected, 0.0))


class Lateness(NamedTuple):
    """How late an engine is, in seconds.

    Attributes:
        silent: since anything was heard of it; it has something to say several times a second.
        overdue: beyond the time by which its work should be done.
        known: whether that time is known.
    """

    silent: float = 0.0
    overdue: float = 0.0
    known: bool = True

    @property
    def worst(self) -> float:
        return max(self.silent, self.overdue)


class StepTimes:
    """How long steps take, by their size: powers of two of tokens, rows and tokens in the cache.

    Keeps about the longest of late: a watcher must not take an ordinary slow step for a hang.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, ...], float] = {}

    def took(self, plan: Plan, seconds: float) -> None:
        size = _size(plan)
        before = self._seconds.get(size, 0.0)
        self._seconds[size] = seconds if seconds > before else before + _DECAY * (seconds - before)

    def expected(self, plan: Plan) -> float | None:
        """None for a step of a size that has not run yet."""
        return self._seconds.get(_size(plan))


def _size(plan: Plan) -> tuple[int, ...]:
    return plan.num_tokens.bit_length(), plan.num_rows.bit_length(), int(plan.kv_length.sum()).bit_length()
