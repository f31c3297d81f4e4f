"""PoolScaler: asks a ScalingPolicy how many replicas a pool should have, given what Ray Serve's controller knows of them.

Imports nothing of Ray.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from jaxserve.config.scaling import ScalingSettings
from jaxserve.config.schedule import Schedule
from jaxserve.routing.demand import Demand, fleet_sample
from jaxserve.routing.scaling import ScalingPolicy

_LOG = logging.getLogger("ray.serve")  # the one that Ray's controller shows

SAMPLE_SECONDS = 1.0  # between two words of a replica, and between two decisions
FRESH_SECONDS = 10.0  # after which nobody's word counts any more

_NAMES = Demand.__struct_fields__


class ScalingContext(Protocol):
    """What PoolScaler looks at of Ray's AutoscalingContext.

    Attributes:
        deployment_name: for people.
        target_num_replicas: as many as Ray was told last.
        running_replicas: ids of those that take requests.
        raw_metrics: name -> replica -> points with `timestamp` and `value`, the latest last.
    """

    deployment_name: str
    target_num_replicas: int

    @property
    def running_replicas(self) -> Sequence[Any]: ...

    @property
    def raw_metrics(self) -> Mapping[str, Mapping[Any, Sequence[Any]]] | None: ...


def as_stats(demand: Demand) -> dict[str, float]:
    """What a replica says, as Ray passes it on."""
    return {name: float(getattr(demand, name)) for name in _NAMES}


class PoolScaler:
    """Decides for one pool. What it remembers is lost with Ray's controller, and with every new deployment: the policy then
    begins with the replicas that there are, and takes none away before a cooldown is over.

    Args:
        settings: of the policy.
        schedule: see Schedule.
        drain_seconds: for which a replica that was given up may still be there. Ray does not say.
        now: a monotonic clock, seconds: the policy must not stand still where the time of day is set back.
        unix: seconds since 1970.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        schedule: Mapping[str, Any],
        drain_seconds: float,
        now: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
    ) -> None:
        self._policy = ScalingPolicy(ScalingSettings(**settings))
        self._schedule = Schedule.of(**schedule)
        self._drain_seconds = drain_seconds
        self._now = now
        self._unix = unix
        self._decided = -math.inf
        self._begun = False  # whether anything was known yet
        self._heard: dict[Any, tuple[float, float]] = {}  # replica -> time of its last word by its clock, and by ours
        self._given_up: list[float] = []  # when: of each replica that may still drain

    def __call__(self, context: ScalingContext) -> tuple[int, dict[str, Any]]:
        """Replicas from now on. Never raises: Ray would end its look at all deployments."""
        now = self._now()
        if now - self._decided >= SAMPLE_SECONDS:
            self._decided = now
            self._decide(context, now)
        return self._policy.target if self._begun else context.target_num_replicas, {}

    def _decide(self, context: ScalingContext, now: float) -> None:
        self._given_up = [one for one in self._given_up if now - one < self._drain_seconds]
        before, ready = self._policy.target, len(context.running_replicas)
        sample = fleet_sample(
            now,
            self._demands(context.raw_metrics or {}, now),
            ready=ready,
            starting=max(context.target_num_replicas - ready, 0),
            draining=len(self._given_up),
            least=self._schedule.least(self._unix()),
        )
        target = self._policy.decide(sample)
        if not self._begun:
            self._begun = math.isfinite(sample.work)
            return
        if target.replicas < before:
            self._given_up += [now] * (before - target.replicas)
        if target.replicas != before:
            _LOG.info(
                "%s: %d replicas instead of %d, for %s: %.0f token-work in %d replicas, %.0f %% of it prompts, %.1f %% too late",
                context.deployment_name,
                target.replicas,
                before,
                target.reason,
                sample.work,
                ready,
                100.0 * sample.prefill_share,
                100.0 * sample.violations,
            )

    def _demands(self, stats: Mapping[str, Mapping[Any, Sequence[Any]]], now: float) -> list[Demand]:
        """What replicas said last, of those that said anything lately."""
        times = {replica: points[-1].timestamp for replica, points in stats.get(_NAMES[0], {}).items() if points}
        self._heard = {
            replica: heard if (heard := self._heard.get(replica)) and heard[0] == time else (time, now)
            for replica, time in times.items()
        }
        fresh = [replica for replica, (_, heard) in self._heard.items() if now - heard < FRESH_SECONDS]
        series = [[stats.get(name, {}).get(replica) for name in _NAMES] for replica in fresh]
        return [Demand(*(points[-1].value for points in one if points)) for one in series if all(one)]
