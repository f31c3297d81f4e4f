"""Finds the requests that end engines: after a death, those in flight run apart from all others, in halves.

A half that survives is cleared. A half that ends its engine, too, is halved again, until a request ends one alone. Halves of the
requests that got most tokens come first: what ended an engine is mostly new, so that few engines end until it is found.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence


class Suspects:
    """Decides which requests run next, from the deaths of engines and the results of trials. Requests are names.

    Attributes:
        trial: those on trial: nothing else may run. Empty outside of trials.
    """

    def __init__(self) -> None:
        self.trial: list[str] = []
        self._passed: set[str] = set()  # of the trial
        self._groups: deque[list[str]] = deque()  # those that wait for their trial
        self._deaths: Counter[str] = Counter()

    @property
    def held(self) -> frozenset[str]:
        """Suspects that are not on trial."""
        return frozenset(one for group in self._groups for one in group)

    @property
    def any(self) -> bool:
        return bool(self.trial or self._groups)

    def deaths(self, names: Collection[str]) -> int:
        """The most engines that one of these was in when they ended, also before it was cleared."""
        return max((self._deaths[one] for one in names), default=0)

    def died(self, in_flight: Sequence[str]) -> list[str]:
        """An engine ended with these requests in it, those with most output first. Returns the one that did it, if it is known.

        That is one that was on trial, alone. In a trial, nothing else was in the engine: what is reported besides came late.
        A trial whose requests had not reached the engine is held again.
        """
        trial, self.trial = self.trial, []
        self._passed.clear()
        reached = bool(set(trial).intersection(in_flight))
        guilty = trial if len(trial) == 1 and reached else []
        if guilty:
            del self._deaths[guilty[0]]
        elif trial and not reached:
            self._groups.appendleft(trial)
        elif trial:
            self._deaths.update(trial)
            self._groups.extendleft(reversed(_halves(trial)))
        self.suspect([one for one in in_flight if one not in trial])
        return guilty

    def suspect(self, names: Sequence[str]) -> None:
        """These were in an engine that ended."""
        held = self.held
        fresh = [one for one in dict.fromkeys(names) if one not in held and one not in self.trial]
        self._deaths.update(fresh)
        self._groups.extend(_halves(fresh))

    def begin(self) -> list[str]:
        """Begin the next trial, in an engine with nothing in it. Returns its requests; none if no suspects are left."""
        assert not self.trial, "one trial at a time"
        self.trial = self._groups.popleft() if self._groups else []
        return self.trial

    def passed(self, name: str) -> bool:
        """A request on trial has run for long enough. Returns whether the trial is over."""
        if name not in self.trial:
            return False
        self._passed.add(name)
        return self._close_if_over()

    def ended(self, name: str) -> bool:
        """A suspect is in no engine any more and does not come back. Returns whether the trial is over."""
        self._deaths.pop(name, None)
        if name not in self.trial:
            self._groups = deque(left for group in self._groups if (left := [one for one in group if one != name]))
            return False
        self.trial.remove(name)
        return self._close_if_over()

    def clear_trial(self) -> None:
        """The trial has lasted long enough: all on it are cleared."""
        self._passed.update(self.trial)
        self._close_if_over()

    def _close_if_over(self) -> bool:
        if self._passed.issuperset(self.trial):
            self.trial = []
            self._passed.clear()
            return True
        return False


def _halves(names: Sequence[str]) -> list[list[str]]:
    middle = -(-len(names) // 2)
    return [list(half) for half in (names[:middle], names[middle:]) if half]
