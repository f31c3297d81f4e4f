"""Stop strings: find the first one in a stream of text, and let nothing out that could still belong to one."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopOutput:
    """What a piece of text led to.

    Attributes:
        text: text that may now be sent.
        matched: the stop string that was found; None if none was.
    """

    text: str
    matched: str | None = None


class StopStrings:
    """Watches the text of one sequence for its stop strings.

    The match is the one that is complete first; of several that end together, the longest. The text ends before it,
    or after it if `include_in_output`. Until a match, exactly the longest end of the text that could still become a
    stop string is held back (nothing if stop strings are included: then that text is sent in any case). None of this
    depends on how the text is split into pushes. A character costs O(number of stop strings), amortised, and a push
    a copy of what is held back.
    """

    def __init__(self, stop: tuple[str, ...], *, include_in_output: bool = False) -> None:
        """Raises ValueError for an empty stop string."""
        if not all(stop):
            raise ValueError("a stop string must not be empty")
        self._include = include_in_output
        # The longest first: of several matches that end together, the first in this order is the one.
        self._patterns = [(text, _fallbacks(text)) for text in sorted(stop, key=len, reverse=True)]
        self._begin()

    def another(self) -> StopStrings:
        """The same for another sequence from its start; what was worked out of the strings is shared."""
        other = copy(self)
        other._begin()
        return other

    def _begin(self) -> None:
        self._watchers = [_Watcher(*pattern) for pattern in self._patterns]
        self._held = ""
        self._matched = False

    def push(self, text: str) -> StopOutput:
        """Take the next text. After a match, every further text is dropped."""
        if self._matched:
            return StopOutput("")
        if not self._watchers:
            return StopOutput(text)
        ends = [(end, watcher.stop) for watcher in self._watchers if (end := watcher.read(text)) is not None]
        if ends:
            # min keeps the first of equal ends: the longest.
            end, stop = min(ends, key=lambda found: found[0])
            self._matched = True
            seen, self._held = self._held + text[:end], ""
            return StopOutput(seen if self._include else seen[: -len(stop)], stop)
        if self._include:
            return StopOutput(text)
        seen = self._held + text
        certain = len(seen) - max(watcher.matching for watcher in self._watchers)
        self._held = seen[certain:]
        return StopOutput(seen[:certain])

    def flush(self) -> StopOutput:
        """The text held back, when no more text comes. Call once, after the last push."""
        held, self._held = self._held, ""
        return StopOutput(held)


class _Watcher:
    """Knuth-Morris-Pratt: how much of one stop string the text read so far ends with."""

    def __init__(self, stop: str, fallback: list[int]) -> None:
        self.stop = stop
        self.matching = 0
        self._fallback = fallback

    def read(self, text: str) -> int | None:
        """Read on; where in `text` the stop string is first complete (the index after it), if it is."""
        stop, matching, i = self.stop, self.matching, 0
        while i < len(text):
            if matching == 0:
                # Nothing begun: jump to where it could begin.
                i = text.find(stop[0], i)
                if i < 0:
                    break
            while matching and stop[matching] != text[i]:
                matching = self._fallback[matching]
            matching += stop[matching] == text[i]
            i += 1
            if matching == len(stop):
                return i
        self.matching = matching
        return None


def _fallbacks(stop: str) -> list[int]:
    """For each length n: the length of the longest proper prefix of ``stop[:n]`` that is also its suffix."""
    fallbacks = [0, 0]
    length = 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = fallbacks[length]
        length += stop[length] == character
        fallbacks.append(length)
    return fallbacks
