"""What batch leaves to interactive requests, those that may come in the next moment included.

It costs batch little. A step with an interactive prompt is filled up to the size that it is padded to anyway, and no further:
nobody waits longer for a first token because of it. A step without interactive work is no larger than one beside interactive
decodes would be, for whoever comes next waits for its end. And some rows stay free: where a batch sequence must make way first,
that takes a step or two.
"""

from __future__ import annotations

import math

from jaxserve.config.fields import SchedulerConfig
from jaxserve.scheduler.pace import Pace

LATELY_SECONDS = 10.0  # after the last interactive sequence, that another one is expected
SPARE = 8  # one row in so many is left free


class Courtesy:
    """Where no time between tokens is promised to interactive sequences, and while none come, batch leaves nothing.

    Args:
        config: rows of a step, and what is promised.
        pace: how large steps may be.
    """

    def __init__(self, config: SchedulerConfig, pace: Pace) -> None:
        self._config = config
        self._pace = pace
        self._seen = -math.inf
        self._expected = False

    def look(self, now: float, *, interactive: bool) -> None:
        """A step begins, with or without interactive sequences that run or wait."""
        if interactive:
            self._seen = now
        self._expected = self._config.itl_target > 0 and now - self._seen < LATELY_SECONDS

    @property
    def spare_rows(self) -> int:
        """Rows that batch does not start in."""
        return self._config.max_num_seqs // SPARE if self._expected else 0

    def most_tokens(self, taken: int, *, prompts: bool, decodes: bool) -> int:
        """Tokens of a step that batch may fill it up to.

        Args:
            taken: tokens of its interactive rows.
            prompts: whether prompts are among them.
            decodes: whether interactive sequences decode: then the step is no larger than they allow.
        """
        if self._expected and prompts:
            return self._pace.padded(taken)
        if self._expected and not decodes:
            return max(taken, self._pace.budget(0, 0))
        return self._config.max_num_batched_tokens
