"""The text of a response that a parser still needs, and a count of the characters that it examines."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

_COMPACT_AT = 64  # chunks that are not needed any more before the list of chunks is shortened


@dataclass(slots=True)
class Meter:
    """Counts the characters that are examined or copied for one response, so that a test can bound them."""

    examined: int = 0


class TextStream:
    """Text that arrives in pieces, by its position in the whole. No piece is copied when another one arrives.

    Parsers keep no text elsewhere that they would examine again: whatever leaves the stream is counted.

    Attributes:
        start: the first position that is kept.
        at: the next position to read.
        end: the position after the last character.
    """

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.start = self.at = self.end = 0
        self._chunks: list[str] = []
        self._ends: list[int] = []
        self._first = 0  # of the chunks that are needed

    def push(self, text: str) -> None:
        if text:
            self.end += len(text)
            self._chunks.append(text)
            self._ends.append(self.end)

    def chunk(self, position: int) -> tuple[str, int]:
        """The piece that has the character at `position` (before the end), and the character's index in it."""
        which = bisect_right(self._ends, position, lo=self._first)
        chunk = self._chunks[which]
        return chunk, position - self._ends[which] + len(chunk)

    def text(self, start: int, end: int) -> str:
        """The characters from `start` to `end`."""
        if start >= end:
            return ""
        self.meter.examined += end - start
        which = bisect_right(self._ends, start, lo=self._first)
        chunk, chunk_end = self._chunks[which], self._ends[which]
        index = start - chunk_end + len(chunk)
        if end <= chunk_end:
            return chunk[index : index + end - start]
        parts = [chunk[index:]]
        while self._ends[which] < end:
            which += 1
            parts.append(self._chunks[which][: len(self._chunks[which]) - max(0, self._ends[which] - end)])
        return "".join(parts)

    def take(self, to: int | None = None) -> str:
        """Read the text up to a position; by default to the end."""
        to = self.end if to is None else to
        text = self.text(self.at, to)
        self.at = max(self.at, to)
        return text

    def find(self, pattern: re.Pattern[str]) -> str:
        """Read on to the first character of a class (`pattern` matches one character) and return it; "" at the end."""
        while self.at < self.end:
            chunk, index = self.chunk(self.at)
            found = pattern.search(chunk, index)
            length = (len(chunk) if found is None else found.start()) - index
            self.meter.examined += length + (found is not None)
            self.at += length
            if found is not None:
                return found[0]
        return ""

    def forget(self, to: int) -> None:
        """Free the pieces that end at or before a position."""
        while self._first < len(self._ends) and self._ends[self._first] <= to:
            self._chunks[self._first] = ""
            self._first += 1
        self.start = max(self.start, to)
        if self._first > _COMPACT_AT and 2 * self._first > len(self._ends):
            del self._chunks[: self._first], self._ends[: self._first]
            self._first = 0
