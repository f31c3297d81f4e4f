"""Schedules: the most that any of the day's hours asks for, by the clocks of the place."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from jaxserve.config.schedule import Schedule

DAY = [
    {"from": "07:30", "to": "20:00", "min": 6},
    {"from": "12:00", "to": "13:00", "min": 8},
    {"from": "22:00", "to": "02:00", "min": 3},
]


def unix(hour: int, minute: int, zone: str = "UTC", month: int = 1) -> float:
    return datetime(2026, month, 15, hour, minute, tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("hour", "minute", "least"),
    [
        (7, 29, 0),
        (7, 30, 6),
        (12, 0, 8),
        (12, 59, 8),
        (13, 0, 6),
        (19, 59, 6),
        (20, 0, 0),
        (22, 0, 3),
        (0, 0, 3),
        (1, 59, 3),
        (2, 0, 0),
    ],
)
def test_a_day(hour: int, minute: int, least: int) -> None:
    assert Schedule.of(DAY).least(unix(hour, minute)) == least


@pytest.mark.parametrize("month", [1, 7])
def test_hours_are_those_of_the_place_in_summer_and_in_winter(month: int) -> None:
    berlin = Schedule.of(DAY, "Europe/Berlin")
    assert berlin.least(unix(7, 30, "Europe/Berlin", month)) == 6
    assert berlin.least(unix(7, 29, "Europe/Berlin", month)) == 0


def test_a_whole_day_and_none() -> None:
    whole = Schedule.of([{"from": "00:00", "to": "24:00", "min": 2}])
    assert {whole.least(unix(hour, 17)) for hour in range(24)} == {2}
    assert Schedule().least(unix(12, 0)) == 0


def test_it_survives_json() -> None:
    schedule = Schedule.of(DAY, "Europe/Berlin")
    assert Schedule.of(**schedule.as_json()) == schedule
