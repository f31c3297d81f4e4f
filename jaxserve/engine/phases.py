"""How long the parts of a start took."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/self/stat")
_START_FIELD = 19  # of those after the command's name: ticks from the machine's start to this process's


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds.

    Attributes:
        imports: from the process's start until the engine began to be built; 0 where the system does not tell.
        files: configuration, tokenizer, chat template, devices.
        weights: loading, at the same time as `programs`.
        programs: compiling or finding those that serving begins with.
        warm: prompts that the prefix cache is to hold from the start.
        rest: cache, scheduler and what else is built.
    """

    imports: float
    files: float
    weights: float
    programs: float
    warm: float
    rest: float


NO_TIMES = StartTimes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class PhaseTimer:
    """Takes the time of one phase after the other, the first of which is what the process did before."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seconds = {"imports": process_age()}
        self._last = now()

    def ended(self, phase: str) -> None:
        now = self._now()
        self._seconds[phase] = now - self._last
        self._last = now

    def start(self, weights: float, programs: float) -> StartTimes:
        """The phases "imports", "files", "warm" and "rest", beside what was taken of the two that went on at once."""
        taken = self._seconds
        return StartTimes(taken["imports"], taken["files"], weights, programs, taken["warm"], taken["rest"])


def process_age() -> float:
    """Seconds since this process began, to a hundredth; 0 where the system does not tell (other than Linux)."""
    try:
        fields = _STAT.read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
