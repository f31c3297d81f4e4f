"""A schedule: how many replicas there are at least, by the time of day."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jaxserve.errors import ConfigError

_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00")
_KEYS = ("from", "to", "min")


@dataclass(frozen=True, slots=True)
class Hours:
    """A part of every day.

    Attributes:
        start, end: minutes after midnight; an end before the start is on the next day.
        least: replicas.
    """

    start: int
    end: int
    least: int

    def holds(self, minute: int) -> bool:
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


@dataclass(frozen=True, slots=True)
class Schedule:
    """Hours, by the clocks of a time zone."""

    hours: tuple[Hours, ...] = ()
    zone: str = "UTC"

    def least(self, unix: float) -> int:
        """Replicas that there are at least at a time since 1970, seconds; 0 if the schedule says nothing of it."""
        local = datetime.fromtimestamp(unix, _zone(self.zone))
        minute = 60 * local.hour + local.minute
        return max((one.least for one in self.hours if one.holds(minute)), default=0)

    def as_json(self) -> dict[str, Any]:
        hours = [{"from": _clock(one.start), "to": _clock(one.end), "min": one.least} for one in self.hours]
        return {"schedule": hours, "zone": self.zone}

    @classmethod
    def of(cls, schedule: Any, zone: Any = "UTC") -> Schedule:
        """From a list of {from: "HH:MM", to: "HH:MM", min: REPLICAS}. Raises ConfigError."""
        if not isinstance(zone, str):
            raise ConfigError(f"time-zone must be a name, such as Europe/Berlin, got {zone!r}", param="replicas")
        _zone(zone)
        if not isinstance(schedule, list):
            raise ConfigError(f"schedule must be a list of {{from, to, min}}, got {schedule!r}", param="replicas")
        return cls(tuple(_hours(one) for one in schedule), zone)


def _hours(given: Any) -> Hours:
    if not isinstance(given, Mapping) or set(given) != set(_KEYS):
        raise ConfigError(f"schedule: each entry has {', '.join(_KEYS)}, got {given!r}", param="replicas")
    start, end, least = _minutes(given["from"]), _minutes(given["to"]), given["min"]
    if isinstance(least, bool) or not isinstance(least, int) or least < 1:
        raise ConfigError(f"schedule: min must be an integer, at least 1, got {least!r}", param="replicas")
    if start == end:
        raise ConfigError(f"schedule: from and to must differ, got {given['from']!r} twice", param="replicas")
    return Hours(start, end, least)


def _minutes(given: Any) -> int:
    if not isinstance(given, str) or _CLOCK.fullmatch(given) is None:  # without quotes YAML reads 20:00 as a number
        raise ConfigError(f'schedule: times are "HH:MM" in quotes, from 00:00 to 24:00, got {given!r}', param="replicas")
    hour, minute = given.split(":")
    return 60 * int(hour) + int(minute)


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _zone(name: str) -> tzinfo:
    if name == "UTC":  # which needs no time zone data
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(f"time-zone: {name!r} is not known here", param="replicas") from error
