"""ScalingSettings: between what numbers of replicas a fleet scales, and how soon."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from jaxserve.errors import ConfigError

_MOST_REPLICAS = 10_000
_LEAST_SHARE = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    """Token-work is that of routers: prompt tokens to compute, plus twice the expected output tokens.

    Attributes:
        min_replicas, max_replicas: that a fleet has; never none.
        spares: replicas beyond those that are needed, for what comes before others have started.
        replica_work: token-work in flight that a replica is meant to have at most.
        fullness: share of it that the replicas that remain may have, for others to go.
        usual_prefill: share of work that is prompts not computed yet; where it is larger, work counts more.
        tolerated: share of promises that may be broken.
        start_seconds: that a replica takes to start.
        horizon_seconds: for which growth is taken to go on; as long as a replica takes to start by default, 0: not at all.
        trend_seconds: that growth is smoothed over.
        cooldown_seconds: for which a replica must not have been needed before it goes.
    """

    min_replicas: int = 1
    max_replicas: int = 8
    spares: int = 0
    replica_work: float = 65536.0
    fullness: float = 0.75
    usual_prefill: float = 0.5
    tolerated: float = 0.02
    start_seconds: float = 60.0
    horizon_seconds: float | None = None
    trend_seconds: float = 30.0
    cooldown_seconds: float = 300.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas <= _MOST_REPLICAS:
            raise ConfigError(
                f"min_replicas must be at least 1 and at most max_replicas, and that at most {_MOST_REPLICAS}, "
                f"got {self.min_replicas} and {self.max_replicas}",
                param="min_replicas",
            )
        if not 0 <= self.spares <= self.max_replicas:
            raise ConfigError(f"spares must be from 0 to max_replicas, got {self.spares}", param="spares")
        for name in ("replica_work", "trend_seconds", "cooldown_seconds"):
            if not 1.0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least 1 and finite, got {getattr(self, name)}", param=name)
        for name in ("fullness", "usual_prefill", "tolerated"):
            if not _LEAST_SHARE <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be from {_LEAST_SHARE} to 1, got {getattr(self, name)}", param=name)
        for name in ("start_seconds", "horizon_seconds"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < math.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, got {value}", param=name)

    @property
    def horizon(self) -> float:
        """Seconds for which growth is taken to go on."""
        return self.start_seconds if self.horizon_seconds is None else self.horizon_seconds


def read_scaling(given: Mapping[str, Any]) -> ScalingSettings:
    """Settings by the names that files and flags have for them: `min` and `max`, the others as here, "-" for "_" if one likes.

    Raises ConfigError.
    """
    names = {name.removesuffix("_replicas"): name for name in (item.name for item in fields(ScalingSettings))}
    whole = {item.name for item in fields(ScalingSettings) if item.type == "int"}
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = names.get(key.replace("-", "_"))
        if name is None:
            known = ", ".join(one.replace("_", "-") for one in names)
            raise ConfigError(f"unknown setting {key!r}; known are {known}", param="replicas")
        if name in values:
            raise ConfigError(f"{key} is given twice", param="replicas")
        number = int if name in whole else int | float
        if isinstance(value, bool) or not isinstance(value, number):
            kind = "an integer" if name in whole else "a number"
            raise ConfigError(f"{key} must be {kind}, got {value!r}", param="replicas")
        values[name] = value if name in whole else float(value)
    return ScalingSettings(**values)
