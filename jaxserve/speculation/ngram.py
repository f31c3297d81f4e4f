"""Prompt lookup: what followed the last few tokens when they came before in the same text.

The longest n-gram of `prompt_lookup_min` to `prompt_lookup_max` tokens that came before is continued from where it came last. A
match that overlaps the end is continued into what it proposes, so a text of period 3 gets drafts of any length.
(Saxena, Prompt Lookup Decoding, 2023; vLLM's method `ngram`.)
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxserve.speculation.drafter import LONG_MATCH, NOTHING, Guess

AT_ONCE = 4096  # tokens of a text that are indexed in one call: a long prompt takes several


class NgramIndex:
    """Where each n-gram of a text, its last tokens apart, ended last.

    Args:
        least, most: n.
    """

    def __init__(self, least: int, most: int) -> None:
        self._sizes = range(least, most + 1)
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in self._sizes]
        self.num_known = 0  # n-grams that end before here are known

    def extend(self, tokens: Sequence[int], end: int) -> None:
        """Take in the n-grams that end at tokens before `end`, those of earlier calls excepted."""
        for size, ends in zip(self._sizes, self._ends, strict=True):
            for last in range(max(self.num_known, size), end + 1):
                ends[tuple(tokens[last - size : last])] = last
        self.num_known = max(self.num_known, end + 1)

    def find(self, tokens: Sequence[int]) -> int | None:
        """Where the longest n-gram that the text ends with ended before; None if none did."""
        for size, ends in zip(reversed(self._sizes), reversed(self._ends), strict=True):
            if size < len(tokens) and (place := ends.get(tuple(tokens[-size:]))) is not None:
                return place
        return None


class NgramGuesser:
    """Guesses by an n-gram index of one text."""

    def __init__(self, least: int, most: int) -> None:
        self._index = NgramIndex(least, most)

    def propose(self, tokens: Sequence[int], most: int) -> Guess:
        end = len(tokens) - 1  # what ends the text was followed by nothing yet
        self._index.extend(tokens, min(end, self._index.num_known + AT_ONCE))
        if self._index.num_known <= end:
            return NOTHING
        place = self._index.find(tokens)
        if place is None:
            return NOTHING
        is_long = place >= LONG_MATCH and tokens[place - LONG_MATCH : place] == tokens[-LONG_MATCH:]
        return Guess(continued(tokens, place, most), is_long)

    def end(self, tokens: Sequence[int]) -> None:
        """Nobody else learns from it."""


class NgramDrafter:
    """A guesser for every text, which knows that text alone."""

    def __init__(self, least: int, most: int) -> None:
        self._sizes = least, most

    def begin(self, tenant: str, num_prompt: int) -> NgramGuesser:
        return NgramGuesser(*self._sizes)


def continued(tokens: Sequence[int], place: int, count: int) -> tuple[int, ...]:
    """So many tokens from `place` on, as if the text went on as from there."""
    found = list(tokens[place : place + count])
    period = len(found)
    while len(found) < count:
        found.append(found[len(found) - period])
    return tuple(found)
