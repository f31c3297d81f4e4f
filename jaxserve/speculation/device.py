"""Guesses that a draft model makes on the device: how many of every row, and whether any.

They are verified in the next step, which need not wait for the host, so what a step with guesses takes includes making them. All
that is chosen here is their number, the same for all rows: that with which a step gives most tokens a second. Where that is none
for a while, the draft model rests; sequences that it did not follow meanwhile have no guesses any more, but later ones do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxserve.speculation.acceptance import Acceptance
from jaxserve.speculation.allocation import WORTH
from jaxserve.speculation.costs import DraftCosts
from jaxserve.speculation.speculation import SpeculationCounts

PATIENCE = 32  # steps without a guess after which the draft model rests
REST = 128  # steps of the first rest; each one that was not worth ending is twice as long
LONGEST_REST = 4096


class DeviceGuesses:
    """Decides for a draft model.

    Attributes:
        max_drafts: that a row has at most.
        counts: so far; making guesses takes no time of the host.

    Args:
        max_rows, max_tokens: of a step.
    """

    def __init__(self, max_drafts: int, *, max_rows: int, max_tokens: int) -> None:
        self.max_drafts = max_drafts
        self.counts = SpeculationCounts()
        self._costs = DraftCosts(min(max_rows * (1 + max_drafts), max_tokens))
        self._acceptance: dict[str, Acceptance] = {}
        self._accepted_at = [0] * max_drafts
        self._idle = 0  # steps in a row without a guess
        self._rest = REST
        self._rests_for = 0  # steps that it still rests

    def guesses(self, names: Sequence[str], num_rows: int) -> int | None:
        """How many tokens to guess of every row behind the next step; None if the draft model rests.

        Args:
            names: of the sequences that take guesses.
            num_rows: of the step.
        """
        if self._rests_for:
            self._rests_for -= 1
            if self._rests_for and (num_rows > 1 or not names):
                return None
            self._rests_for = self._idle = 0
        best = self._best(names, num_rows) if names else 0
        if best or not names:
            self._idle = 0
            self._rest = REST if best else self._rest
            return best
        self._idle += 1
        if self._idle >= PATIENCE:
            self._rests_for, self._rest = self._rest, min(2 * self._rest, LONGEST_REST)
            return None
        return 0

    def verified(self, name: str, num_drafts: int, num_right: int) -> None:
        """A row verified drafts."""
        self._of(name).observe(num_right, num_drafts)
        for position in range(num_right):
            self._accepted_at[position] += 1
        counts = self.counts
        self.counts = replace(
            counts,
            drafts=counts.drafts + 1,
            draft_tokens=counts.draft_tokens + num_drafts,
            accepted_tokens=counts.accepted_tokens + num_right,
            accepted_at=tuple(self._accepted_at),
        )

    def ended(self, name: str) -> None:
        """A sequence is over."""
        self._acceptance.pop(name, None)

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """A step of decodes alone took so long."""
        self._costs.observe(rows, tokens, seconds)

    def _best(self, names: Sequence[str], num_rows: int) -> int:
        chances = [self._of(name).all_right(self.max_drafts) for name in names]
        alone = self._costs.seconds(num_rows, num_rows)
        if not alone:  # a plain step is measured first
            return 0
        best, most, expected = 0, WORTH * num_rows / alone, float(num_rows)
        for count in range(1, self.max_drafts + 1):
            expected += sum(each[count - 1] for each in chances)
            seconds = self._costs.seconds(num_rows, num_rows + count * len(names))
            if expected > most * seconds:
                best, most = count, expected / seconds
        return best

    def _of(self, name: str) -> Acceptance:
        return self._acceptance.setdefault(name, Acceptance())
