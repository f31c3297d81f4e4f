"""Records what a process is: how often it was started again, and its memory."""

from __future__ import annotations

import os
from pathlib import Path

from jaxserve.metrics import catalogue
from jaxserve.metrics.instruments import Instruments

_STATM = Path("/proc/self/statm")  # sizes in pages, the second of which is resident


class ProcessRecorder:
    """Records this process.

    Args:
        role: what it is: "engine", "frontend" or "batches".
        restarts: how often a process in this place was started before.
    """

    def __init__(self, instruments: Instruments, role: str, restarts: int = 0) -> None:
        self._memory = instruments.gauge(catalogue.PROCESS_MEMORY).labels(role)
        restarted = instruments.counter(catalogue.PROCESS_RESTARTS).labels(role)
        if restarts:
            restarted.inc()
        self.measure()

    def measure(self) -> None:
        """Record the memory now; nothing where the system does not tell (other than Linux)."""
        if _STATM.exists():
            self._memory.set(int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
