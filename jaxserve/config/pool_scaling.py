"""How a pool's replicas scale: the settings of the policy, and a schedule that it obeys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxserve.config.scaling import ScalingSettings, read_scaling
from jaxserve.config.schedule import Schedule
from jaxserve.errors import ConfigError

_SCHEDULE = ("schedule", "time-zone")


@dataclass(frozen=True, slots=True)
class PoolScaling:
    """Between what numbers a pool scales, and how many there are at least at which time of day."""

    settings: ScalingSettings
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        most = self.settings.max_replicas
        for hours in self.schedule.hours:
            if hours.least > most:
                raise ConfigError(f"schedule asks for {hours.least} replicas, and max is {most}", param="replicas")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> PoolScaling:
        """From what a file says of a pool's replicas. Raises ConfigError."""
        if "max" not in given:
            raise ConfigError("max must say how many there are at most", param="replicas")
        schedule = Schedule.of(given.get("schedule", []), given.get("time-zone", "UTC"))
        return cls(read_scaling({key: value for key, value in given.items() if key not in _SCHEDULE}), schedule)
