"""The compiled steps: some before the engine is ready, the others behind its back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxserve.step.buckets import Bucket, BucketGrid

logger = logging.getLogger(__name__)


class StepPrograms:
    """Programs by bucket. Plans whose bucket is not compiled yet are padded up to one that is.

    Attributes:
        misses: how many plans that was.

    Args:
        grid: all buckets.
        ready: programs that there are already; one of them must hold every plan.
        compile_step: makes another.
    """

    def __init__(self, grid: BucketGrid, ready: Mapping[Bucket, Any], compile_step: Callable[[Bucket], Any]) -> None:
        self.misses = 0
        self._grid = grid
        self._programs = dict(ready)
        self._compile_step = compile_step
        missing = [bucket for bucket in grid.buckets if bucket not in self._programs]
        self._thread = threading.Thread(target=self._compile, args=(missing,), name="jaxserve-compile")
        if missing:
            self._thread.start()

    def choose(self, tokens: int, rows: int) -> tuple[Bucket, Any]:
        """The cheapest compiled bucket that holds a plan, and its program. Raises ValueError for a plan beyond the limits."""
        best = self._grid.choose(tokens, rows)
        if best in self._programs:
            return best, self._programs[best]
        self.misses += 1
        bucket = self._grid.choose(tokens, rows, among=self._programs)
        return bucket, self._programs[bucket]

    def compiled(self) -> dict[Bucket, Any]:
        """What there is by now."""
        return dict(self._programs)

    def wait(self) -> None:
        """Wait for the others."""
        if self._thread.ident is not None:
            self._thread.join()

    def _compile(self, missing: Sequence[Bucket]) -> None:
        for bucket in missing:
            if not threading.main_thread().is_alive():  # the process ends, and waits for this thread
                return
            try:
                self._programs[bucket] = self._compile_step(bucket)
            except Exception:  # serving goes on without it: larger buckets hold its plans
                logger.exception("compiling the step of %d tokens in %d rows failed", bucket.tokens, bucket.rows)
        logger.info("all %d steps are compiled", len(self._programs))
