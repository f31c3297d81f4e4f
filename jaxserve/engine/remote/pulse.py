"""The pulse of an engine process: that it lives, when its loop last turned, and how long what it does should take.

It comes from a thread of its own, which needs the GIL: a process that is stopped, or held by C code that does not release the
GIL, has no pulse. A long step or a compilation does not keep it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from jaxserve.children import Parent
from jaxserve.engine.remote.codec import encode
from jaxserve.engine.remote.reports import Pulse

PULSE_SECONDS = 0.5
LOOK_SECONDS = 0.5
SILENT_SECONDS = 10.0  # without a pulse, after which a process is killed
STEP_SECONDS = 30.0  # that a step may always take, whatever was expected
STEP_FACTOR = 10  # times what was expected that a step may take


def send_pulse(parent: Parent, pulse: Callable[[], Pulse]) -> None:
    """Send the parent a pulse again and again, for as long as this process lives."""

    def beat() -> None:
        while True:
            parent.send(encode(pulse()))
            time.sleep(PULSE_SECONDS)

    threading.Thread(target=beat, name="jaxserve-pulse", daemon=True).start()


class _Unchanged:
    """Seconds for which a value has been the same, of those in which somebody looked in time."""

    def __init__(self) -> None:
        self._value: object = None
        self.seconds = 0.0

    def look(self, value: object, passed: float) -> float:
        self.seconds = 0.0 if value != self._value else self.seconds + passed
        self._value = value
        return self.seconds


class Watch:
    """Judges, from an engine's pulses, whether its process must be killed. Its parent looks every LOOK_SECONDS.

    Time in which the parent did not look does not count: if the machine or the parent was held up, pulses may be on their way.

    Args:
        hang_timeout: seconds without a turn after which it is killed in any case; 0 for never, whatever it does.
    """

    def __init__(self, hang_timeout: float) -> None:
        self._hang_timeout = hang_timeout
        self._looked: float | None = None
        self._silent, self._still, self._busy = _Unchanged(), _Unchanged(), _Unchanged()

    def look(self, pulses: int, pulse: Pulse | None, now: float) -> tuple[str, float] | None:
        """Look at the number of pulses so far and the latest. Returns the reason to kill it and for how long that held."""
        passed = 0.0 if self._looked is None else min(now - self._looked, 2 * LOOK_SECONDS)
        self._looked = now
        if pulse is None or not self._hang_timeout:
            return None
        silent = self._silent.look(pulses, passed)
        still = self._still.look(pulse.heartbeat, passed)
        busy = self._busy.look(pulse.activity.began, passed)
        if still > self._hang_timeout:
            return f"the engine's loop did not turn for {still:.0f} s", still
        if silent > SILENT_SECONDS:
            return f"the engine's process gave no pulse for {silent:.0f} s", silent
        expected = pulse.activity.expected
        if expected is not None and busy > longest_step(expected):
            return f"the engine's step took {busy:.0f} s, and about {expected:.1f} s were expected", busy
        return None


def longest_step(expected: float) -> float:
    """Seconds after which a step that should take so long counts as hanging."""
    return max(STEP_SECONDS, STEP_FACTOR * expected)
