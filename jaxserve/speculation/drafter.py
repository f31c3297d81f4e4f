"""What makes drafts: guesses at the tokens that a model chooses next.

A drafter of the host sees tokens that are known. What a draft model guesses only the device knows (`device`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

LONG_MATCH = 8  # tokens that a repeated passage has in common, from which on it is likely to go on


class Guess(NamedTuple):
    """Tokens that may follow a text.

    Attributes:
        tokens: they; none if nothing is known.
        is_long: whether at least LONG_MATCH tokens before them were there before. What became of guesses is counted apart.
    """

    tokens: tuple[int, ...]
    is_long: bool = False


NOTHING = Guess(())


class Guesser(Protocol):
    """Guesses for one text, which only grows between calls."""

    def propose(self, tokens: Sequence[int], most: int) -> Guess:
        """At most `most` (above 0) tokens that may follow these."""
        ...

    def end(self, tokens: Sequence[int]) -> None:
        """The text is complete: others may learn from it."""
        ...


class Form(Protocol):
    """What a text may say next."""

    def allows(self, tokens: Sequence[int]) -> int:
        """How many of these it might say, one after another."""
        ...


class Drafter(Protocol):
    """Makes a guesser for every text."""

    def begin(self, tenant: str, num_prompt: int) -> Guesser:
        """For a text of this tenant with so many tokens of prompt: what it learns is for texts of the same tenant alone."""
        ...
