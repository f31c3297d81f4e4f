"""Whether interactive requests come faster than they are started, and who is in time then.

A crowd that comes at once is served in its order, and as many clients as like may each ask again when they were answered. But a
queue that keeps growing makes everybody late who is behind it, however fast the machine is, and all its work is for requests that
missed their time to first token. So where in two seconds a fourth more requests come than are started, in the latter of them as
many at least, while what waits would take twice as long as the target:

- a request joins only if it would start soon enough to be in time, else it is refused at once (one with a `queue_timeout` of its
  own decides for itself how long it waits); how soon that is, first tokens tell: while more than a tenth of them are late the
  wait that is allowed gets shorter, else longer, up to half of the target;
- who has waited for so long that its first token would be late waits on behind those that can still be in time, and leaves them
  one of eight rows.

This ends when nobody waits, or when for three seconds requests come no faster than they are started. Both are counted, so no
estimate can make it last. (As Facebook's controlled delay and adaptive LIFO: Maurer, Fail at Scale, ACM Queue 13(8), 2015. The
wait that is allowed follows a quantile by stochastic approximation: Robbins and Monro, 1951.)
"""

from __future__ import annotations

import math

BEGINS, ENDS = 1.25, 1.1  # times as many requests come as are started
TO_END = 3  # intervals in a row of that: one lull is not the end of an overload
SHORTEST, LONGEST = 1.0, 10.0  # seconds of an interval,
BACKLOG = 2.0  # times the target: less is what a neighbour's burst leaves behind, and is made up for
FEWEST = 8  # requests that come in one, if they come within the longest
MOST, FIRST, LEAST = 0.5, 0.2, 0.05  # of the target that may be waited in the queue: the prompt must be computed too
LATE_SHARE = 0.1  # of those let in that may be late
GAIN = 0.05  # of the target by which one of them changes the wait that is allowed, at most


class Overload:
    """Counts requests that come and start, in intervals of a second or more.

    Attributes:
        is_on: whether there is an overload now.
        num_begun: times that one began.
        longest_wait: seconds in the queue with which a request is in time.

    Args:
        ttft_target: seconds to the first token that are aimed at; 0: there are no overloads.
    """

    def __init__(self, ttft_target: float) -> None:
        self.is_on = False
        self.num_begun = 0
        self.longest_wait = FIRST * ttft_target
        self._target = ttft_target
        self._on_since = math.inf  # when the overload began
        self._began: float | None = None  # the interval; None while nobody waits
        self._came = 0
        self._started = 0
        self._before: tuple[int, int] | None = None  # what came and was started in the interval before
        self._quiet = 0  # intervals in a row, in an overload, in which hardly more came

    def is_late(self, waited: float) -> bool:
        """Whether who waited so long, or will, cannot be in time any more."""
        return waited > (self.longest_wait + self._target) / 2

    def came(self, count: int) -> None:
        """So many interactive requests came, those that were refused included."""
        self._came += count

    def started(self) -> None:
        """An interactive request left the queue to run."""
        self._started += 1

    def first_token(self, arrival: float, now: float) -> None:
        """A request that did not wait on as a late one has its first token."""
        if self.is_on and arrival >= self._on_since:
            change = LATE_SHARE if now - arrival <= self._target else LATE_SHARE - 1.0
            wait = self.longest_wait + GAIN * change * self._target
            self.longest_wait = min(max(wait, LEAST * self._target), MOST * self._target)

    def look(self, now: float, *, waits: bool, backlog: float) -> bool:
        """Whether there is an overload now; `waits`: interactive requests wait, for `backlog` seconds a new one would."""
        if not self._target or not waits:
            self.is_on, self._began, self._before = False, None, None
            return False
        if self._began is None or now < self._began:
            self._begin_interval(now)
            return self.is_on
        if now - self._began < (SHORTEST if self._came >= FEWEST else LONGEST):
            return self.is_on
        if self.is_on:
            self._quiet = self._quiet + 1 if self._came <= ENDS * self._started else 0
            self.is_on = self._quiet < TO_END
        elif self._grows() and backlog > BACKLOG * self._target:
            self.is_on, self._quiet, self._on_since = True, 0, now
            self.num_begun += 1
        self._before = self._came, self._started
        self._begin_interval(now)
        return self.is_on

    def _grows(self) -> bool:
        """Whether more come than are started, in this interval and the one before: of a crowd at once none come in the latter."""
        if self._before is None:
            return False
        came, started = self._came + self._before[0], self._started + self._before[1]
        return self._came >= max(FEWEST, self._started) and came >= BEGINS * started

    def _begin_interval(self, now: float) -> None:
        self._began, self._came, self._started = now, 0, 0
