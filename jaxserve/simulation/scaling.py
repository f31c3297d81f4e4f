"""A simulated fleet that scales: the product's own ScalingPolicy, replicas that take their time to start, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxserve.config.scaling import ScalingSettings, read_scaling
from jaxserve.errors import ConfigError
from jaxserve.routing.demand import Demand, fleet_sample
from jaxserve.routing.scaling import ScalingPolicy

SAMPLE_SECONDS = 1.0  # between two decisions, as in a fleet on Ray
DRAIN_SECONDS = 30.0  # that a replica may take to end what it has; the rest goes on elsewhere
_MOST_DECISIONS = 1000  # kept; the first


def parse_scaling(text: str | None) -> ScalingSettings | None:
    """Settings from NAME=VALUE, comma-separated, with the names of a fleet's file. Raises ConfigError."""
    if text is None:
        return None
    given: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name in given:
            raise ConfigError(f"autoscale says {name} twice", param="autoscale")
        try:
            given[name] = int(value) if value.lstrip("-").isdigit() else float(value)
        except ValueError as error:
            raise ConfigError(f"autoscale must be NAME=NUMBER, comma-separated, got {part!r}", param="autoscale") from error
    if "max" not in given:
        raise ConfigError("autoscale must say max, the replicas that there are at most", param="autoscale")
    try:
        return read_scaling(given)
    except ConfigError as error:
        raise ConfigError(f"autoscale: {error.message}", param="autoscale") from error


@dataclass(frozen=True, slots=True)
class Decision:
    """The target changed.

    Attributes:
        time: second of the run.
        replicas: wanted from then on.
        reason: as the policy says it.
        ready, starting, draining: replicas at that time.
    """

    time: float
    replicas: int
    reason: str
    ready: int
    starting: int
    draining: int


class FleetScaling:
    """Which of a fleet's places have a replica. A place is taken from the beginning of a start to the end of a drain.

    Attributes:
        settings: of the policy; `start_seconds` is how long starts take, too.
        starting: place -> time at which its replica takes requests.
        draining: place -> time since which it takes no more.
        decisions: the first of them.
    """

    def __init__(self, settings: ScalingSettings) -> None:
        self.settings = settings
        self.starting: dict[int, float] = {}
        self.draining: dict[int, float] = {}
        self.decisions: list[Decision] = []
        self._policy = ScalingPolicy(settings)
        self._since: dict[int, float] = {}  # places that are taken
        self._seconds = 0.0  # for which others were

    def take(self, place: int, now: float) -> None:
        """A replica holds its GPUs from now on."""
        self._since[place] = now

    def release(self, place: int, now: float) -> None:
        self._seconds += now - self._since.pop(place)
        self.starting.pop(place, None)
        self.draining.pop(place, None)

    def free(self) -> list[int]:
        return [place for place in range(self.settings.max_replicas) if place not in self._since]

    def replica_seconds(self, now: float) -> float:
        """For which places were taken until now."""
        return self._seconds + sum(max(now - since, 0.0) for since in self._since.values())

    def decide(self, now: float, demands: Sequence[Demand]) -> int:
        """Replicas that there should be, by what those say that take requests."""
        before = self._policy.target
        counts = (len(demands), len(self.starting), len(self.draining))
        ready, starting, draining = counts
        target = self._policy.decide(fleet_sample(now, demands, ready=ready, starting=starting, draining=draining))
        if target.replicas != before and len(self.decisions) < _MOST_DECISIONS:
            self.decisions.append(Decision(now, target.replicas, target.reason, *counts))
        return target.replicas
