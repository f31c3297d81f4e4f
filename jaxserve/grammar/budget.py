"""A bound on the work that the analysis of one schema may take."""

from __future__ import annotations

MOST_STEPS = 200_000  # schemas, references and values that are looked at or compared: about a second


class TooMuchWorkError(Exception):
    """The analysis takes more steps than it may."""


class Budget:
    """The steps that are left."""

    def __init__(self, steps: int = MOST_STEPS) -> None:
        self._left = steps

    def spend(self, steps: int = 1) -> None:
        """Raise TooMuchWorkError if fewer are left."""
        self._left -= steps
        if self._left < 0:
            raise TooMuchWorkError
