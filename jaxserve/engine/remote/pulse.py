"""The pulse of an engine process: when its loop last turned, told to its parent, who sees by it that an engine hangs.

It comes from a thread of its own, so that a step which takes long, or compiles, is told from a process that does nothing at all
only by how long it takes: both keep their streams waiting.
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


def send_pulse(parent: Parent, heartbeat: Callable[[], float]) -> None:
    """Tell the parent of the latest turn again and again, for as long as this process lives."""

    def beat() -> None:
        while True:
            parent.send(encode(Pulse(heartbeat())))
            time.sleep(PULSE_SECONDS)

    threading.Thread(target=beat, name="jaxserve-pulse", daemon=True).start()


class Stillness:
    """How long an engine has stood still, seen from its parent, who looks every LOOK_SECONDS.

    Time in which nobody looked does not count: where the whole machine stood still, or the parent did, the engine's word may be
    on its way.
    """

    def __init__(self) -> None:
        self._heartbeat: float | None = None
        self._looked = 0.0
        self._still = 0.0

    def look(self, heartbeat: float | None, now: float) -> float:
        """Seconds without a turn, given the time of the latest one that was told."""
        if heartbeat != self._heartbeat or heartbeat is None:
            self._heartbeat, self._still = heartbeat, 0.0
        else:
            self._still += min(now - self._looked, 2 * LOOK_SECONDS)
        self._looked = now
        return self._still
