"""Stop strings: find the first one in a stream of text, and let nothing out that could still belong to one."""

from __future__ import annotations

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
        self._watchers = [_Watcher(text) for text in sorted(stop, key=len, reverse=True)]
        self._held = ""
        self._matched = False

    def push(self, text: str) -> StopOutput:
        """Take the next text. After a match, every further text is dropped."""
        if self._matched:
            return StopOutput("")
        if not self._watchers:
            return StopOutput(text)
        for i, character in enumerate(text):
            # Every watcher sees every character, so that its state is right for the next one.
            complete = [watcher.stop for watcher in self._watchers if watcher.step(character)]
            if complete:
                self._matched = True
                seen = self._held + text[: i + 1]
                self._held = ""
                return StopOutput(seen if self._include else seen[: -len(complete[0])], complete[0])
        if self._include:
            return StopOutput(text)
        seen = self._held + text
        certain = len(seen) - max(watcher.matching for watcher in self._watchers)
        self._held = seen[certain:]
        return StopOutput(seen[:certain])

    def flush(self) -> str:
        """The text held back, when no more text comes. Call once, after the last push."""
        held, self._held = self._held, ""
        return held


class _Watcher:
    """Knuth-Morris-Pratt: how much of one stop string the text read so far ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matching = 0
        self._fallback = _fallbacks(stop)

    def step(self, character: str) -> bool:
        """Read one character; whether the text now ends with the whole stop string."""
        while self.matching and self.stop[self.matching] != character:
            self.matching = self._fallback[self.matching]
        if self.stop[self.matching] == character:
            self.matching += 1
        return self.matching == len(self.stop)


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
