"""How much of the engine lines of batches may take now."""

from __future__ import annotations

from collections.abc import Callable

from jaxserve.clock import Clock
from jaxserve.config.fields import SchedulerConfig
from server.batches.turns import Load

MEMORY_SECONDS = 5.0  # how long at least what others had is left to them
_SPARE_SHARE, _LEAST_SPARE = 4, 4  # lines that wait in the engine so that no row of it waits for a line
_QUEUE_SHARE = 2  # of the engine's queue, at most a half


class Room:
    """Fills the engine's rows, never its queue, and leaves others as many rows as they had lately.

    A row that others find taken is taken back: what ran in it loses what it had computed. So it is better left free.

    Args:
        busy: sequences that run or wait in it, of everybody, as far as is known.
    """

    def __init__(self, scheduler: SchedulerConfig, busy: Callable[[], int], clock: Clock) -> None:
        self._rows = scheduler.max_num_seqs
        self._spare = max(self._rows // _SPARE_SHARE, _LEAST_SPARE)
        self._most = Load(
            min(self._rows + self._spare, max(1, scheduler.max_waiting // _QUEUE_SHARE)),
            scheduler.max_waiting_tokens // _QUEUE_SHARE,
        )
        self._busy = busy
        self._clock = clock
        self._peaks = (0, 0)  # of others' sequences: in the period before this one, and in this one
        self._began = clock.now()  # of this one

    @property
    def most(self) -> Load:
        """What lines may take while there is nobody else."""
        return self._most

    def bound(self, own: int) -> Load:
        """What they may take now, where `own` sequences are theirs."""
        # What is known of the engine is a little old, but never older than what is known of one's own: others are not overrated.
        others = max(self._busy() - own, 0)
        before, now = self._peaks
        passed = self._clock.now() - self._began
        if passed >= MEMORY_SECONDS:
            self._began = self._clock.now()
            before, now = (now if passed < 2 * MEMORY_SECONDS else 0), 0
        self._peaks = (before, max(now, others))
        peak = max(self._peaks)
        if not peak:
            return self._most
        return Load(min(max(self._rows - peak, self._spare), self._most.sequences), self._most.tokens)
