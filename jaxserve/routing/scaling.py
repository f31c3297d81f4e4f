"""ScalingPolicy: how many replicas a fleet should have. Only decides: who starts and drains replicas asks it now and then."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from jaxserve.config.scaling import ScalingSettings

_MOST_AHEAD = 2.0  # times the work there is that growth may foresee
_MOST_GROWTH = 2.0  # times the replicas there are, at once: one wrong sample costs no more
_MOST_SHRINK = 0.25  # of the replicas, at once
_IDLE = 0.25  # of its work; where replicas have less, more of them would break no fewer promises


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSample:
    """A fleet as it was seen at a time. Numbers that are negative or not finite count as unknown.

    Attributes:
        time: seconds of any one clock.
        ready: replicas that take requests.
        starting, draining: replicas that will, and that do no more.
        work: token-work of all requests that did not end, waiting or running.
        prefill_share: part of it that is prompts not computed yet.
        violations: share of the requests that lately began or ended too late, of those that were promised a time.
        least: replicas that there should be whatever there is to do, as a schedule says.
    """

    time: float
    ready: int
    starting: int = 0
    draining: int = 0
    work: float
    prefill_share: float = 0.0
    violations: float = 0.0
    least: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """Replicas that a fleet should have, and why."""

    replicas: int
    reason: str


class ScalingPolicy:
    """More replicas at once, fewer only after a while, and only by draining.

    Work says how many are needed, whatever number there is now, so that those that are being started are not asked for again.
    Prompts that wait count more, and so does growth, for as long as a replica takes to start. Broken promises ask for more than
    there are. Fewer are wanted only if more were not needed for all of the cooldown, and while none drains.

    Attributes:
        target: the last one; at first, the fewest.
    """

    def __init__(self, settings: ScalingSettings) -> None:
        self.settings = settings
        self.target = settings.min_replicas
        self._time: float | None = None
        self._calm = 0.0  # when the last step down was, or a long time without samples ended
        self._work = 0.0
        self._growth = 0.0  # work a second, smoothed
        self._needs: deque[tuple[float, int]] = deque()  # needs of the cooldown, each above those after it: never many

    def decide(self, sample: FleetSample) -> Target:
        """The target from now on. A sample that says no time or no work, or an earlier time, changes nothing."""
        if not _known(sample.work) or not _known(sample.time) or not (self._time is None or sample.time > self._time):
            return Target(self.target, "nothing is known")
        ready, starting = self._count(sample.ready), self._count(sample.starting)
        if self._time is None:  # what is there stays for a cooldown
            self.target = self._bounded(ready + starting)
        self._observe(sample.time, min(sample.work, _MOST_AHEAD * self.settings.max_replicas * self.settings.replica_work))
        needed, reason = self._needed(sample, ready, starting)
        total, least = self._spared(needed), self._count(sample.least)
        if least > total:
            total, reason = least, "the schedule"
        self._need(sample.time, max(total, self._spared(self._idle_needs())))
        wanted = min(total, self._bounded(_grown(max(ready + starting, self.settings.min_replicas))))
        if wanted > self.target:
            self.target = wanted
            return Target(wanted, reason)
        return self._shrink(sample)

    def _observe(self, now: float, work: float) -> None:
        if self._time is None or now - self._time > self.settings.cooldown_seconds:
            self._calm, self._growth = now, 0.0
            self._needs.clear()
        else:
            passed = now - self._time
            new = -math.expm1(-passed / self.settings.trend_seconds)  # weight of the latest
            self._growth += new / passed * (work - self._work) - new * self._growth
        self._time, self._work = now, work

    def _needed(self, sample: FleetSample, ready: int, starting: int) -> tuple[int, str]:
        """Replicas for what there is and will soon be, without spares."""
        settings = self.settings
        prefill = min(sample.prefill_share, 1.0) if _known(sample.prefill_share) else 0.0
        weight = max(prefill / settings.usual_prefill, 1.0)
        ahead = min(self._work + max(self._growth, 0.0) * settings.horizon, _MOST_AHEAD * self._work)
        needs = {
            "work": self._work / settings.replica_work,
            "prompts that wait": weight * self._work / settings.replica_work,
            "growth": weight * ahead / settings.replica_work,
        }
        busy = self._work > _IDLE * ready * settings.replica_work
        if _known(sample.violations) and sample.violations > settings.tolerated and busy and not starting:
            needs["broken promises"] = ready * min(min(sample.violations, 1.0) / settings.tolerated, _MOST_GROWTH)
        reason = max(needs, key=lambda name: needs[name])  # the first of equals
        return math.ceil(min(needs[reason], settings.max_replicas)), reason

    def _idle_needs(self) -> int:
        """Replicas that would have no more than a part of the work they may have: fewer would soon be too few again."""
        return math.ceil(self._work / (self.settings.replica_work * self.settings.fullness))

    def _need(self, now: float, needed: int) -> None:
        while self._needs and self._needs[-1][1] <= needed:
            self._needs.pop()
        self._needs.append((now, needed))
        while self._needs[0][0] < now - self.settings.cooldown_seconds:
            self._needs.popleft()

    def _shrink(self, sample: FleetSample) -> Target:
        """To what was needed at most, step by step."""
        needed = self._needs[0][1]
        if needed >= self.target:
            return Target(self.target, "as many as needed")
        if sample.time - self._calm < self.settings.cooldown_seconds:
            return Target(self.target, "cooling down")
        if self._count(sample.draining):
            return Target(self.target, "one drains")
        self.target = max(needed, self.target - max(int(_MOST_SHRINK * self.target), 1))
        self._calm = sample.time
        return Target(self.target, "more than needed")

    def _spared(self, needed: int) -> int:
        return self._bounded(needed + self.settings.spares)

    def _count(self, replicas: int) -> int:
        return int(min(replicas, self.settings.max_replicas)) if _known(replicas) else 0

    def _bounded(self, replicas: int) -> int:
        return min(max(replicas, self.settings.min_replicas), self.settings.max_replicas)


def _grown(replicas: int) -> int:
    return math.ceil(_MOST_GROWTH * replicas)


def _known(value: float) -> bool:
    return 0.0 <= value < math.inf
