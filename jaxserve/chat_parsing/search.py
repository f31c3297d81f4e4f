"""Searches for patterns in a stream. Each search continues with the next piece where it stopped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jaxserve.chat_parsing.automaton import END, START, Edge, Pattern
from jaxserve.chat_parsing.scanner import ValueScanner
from jaxserve.chat_parsing.stream import Meter, TextStream

_NO_SEPARATOR = re.compile(r"[^\s,;]")
_Positions = list[int]  # by tag, -1: not set; shared between threads and never changed


@dataclass(frozen=True, slots=True)
class Match:
    """A match by its positions in the stream; `groups`: the texts of the named groups that took part."""

    start: int
    end: int
    groups: Mapping[str, str]


class Search:
    """The search for the first match that starts at `at` or later; if `anchored`, for one that starts there.

    Attributes:
        match: the match, once no further text can change it.
        position: how far the text has been read.
    """

    def __init__(
        self, pattern: Pattern, stream: TextStream, at: int, *, anchored: bool = False, limit: int | None = None
    ) -> None:
        """`limit`: the length at which the beginning of a match is given up."""
        self.pattern = pattern
        self.match: Match | None = None
        self.position = max(stream.start, at - pattern.look_behind)
        self._stream, self._at, self._anchored, self._limit = stream, at, anchored, limit
        self._unset = [-1] * pattern.tag_count
        self._accepted: tuple[_Positions, int] | None = None
        self._threads: list[_Positions] = []
        self._state, self._is_fresh = pattern.idle.state, True
        self._enter(pattern.begin(at_start=self.position == 0, open=self.position >= at))
        self._decide()

    @property
    def is_over(self) -> bool:
        """Whether there is a match, or there cannot be one any more."""
        return not self._state.threads

    @property
    def certain_to(self) -> int:
        """The position before which no match can start; that of the match if there is one."""
        if self.match is not None:
            return self.match.start
        if not self._state.threads:
            return self._stream.end
        if self._is_fresh:
            return self.position
        threads = self._threads if self._accepted is None else [*self._threads, self._accepted[0]]
        return min(self.position if thread[START] < 0 else thread[START] for thread in threads)

    def advance(self, *, final: bool = False) -> None:
        """Read what the stream has. `final`: no text follows."""
        while self._state.threads and self.position < self._stream.end:
            before = self.position
            self._read(*self._stream.chunk(before))
            self._stream.meter.examined += self.position - before
        if final and self._state.threads:
            accepted = self.pattern.finish(self._state)
            if accepted is not None:
                self._accepted = self._noted(*accepted), self.position
            self._state = self.pattern.after(self._state, len(self._state.threads))
        if not self._state.threads:
            self._decide()

    def _read(self, chunk: str, index: int) -> None:
        """Read a piece from an index on, as far as is needed."""
        pattern, offset, first = self.pattern, self.position - index, self.pattern.first_characters
        restarts = not self._anchored and self._accepted is None
        while index < len(chunk):
            if self._is_fresh and restarts and first is not None and offset + index >= max(self._at, 1):
                found = first.search(chunk, index)
                if found is None:
                    self.position, self._state = offset + len(chunk), pattern.idle.state
                    return
                index = found.start()
                self.position = offset + index
                self._enter(pattern.idle)
            character = chunk[index]
            index += 1
            self.position = offset + index
            self._enter(pattern.step(self._state, character, restarts=restarts, open=self.position >= self._at))
            restarts = restarts and self._accepted is None
            if not self._state.threads:
                return
            if self._limit is not None and self.position - self._threads[0][START] > self._limit <= self.position:
                self._give_up(restarts=restarts)

    def _enter(self, edge: Edge) -> None:
        if edge.accepted is not None:
            self._accepted = self._noted(*edge.accepted), self.position
        if edge.moves is not None:
            self._threads = [self._noted(source, tags) for source, tags in edge.moves]
        self._state, self._is_fresh = edge.state, edge.is_fresh

    def _noted(self, source: int, tags: tuple[int, ...]) -> _Positions:
        positions = self._unset if source < 0 else self._threads[source]
        if tags:
            positions = positions.copy()
            for tag in tags:
                positions[tag] = self.position
        return positions

    def _give_up(self, *, restarts: bool) -> None:
        """Drop the threads that are longer than the limit; a match may begin here instead."""
        assert self._limit is not None
        first = next(
            (n for n, thread in enumerate(self._threads) if self.position - thread[START] <= self._limit or thread[START] < 0),
            len(self._threads),
        )
        self._state, self._threads = self.pattern.after(self._state, first), self._threads[first:]
        if restarts and not self._threads:
            self._enter(self.pattern.idle)

    def _decide(self) -> None:
        if self._state.threads or self._accepted is None or self.match is not None:
            return
        positions, position = self._accepted
        groups = {
            name: self._stream.text(positions[tag], positions[tag + 1])
            for name, tag in self.pattern.group_tags.items()
            if positions[tag] >= 0 and positions[tag + 1] >= 0
        }
        self.match = Match(positions[START], position if positions[END] < 0 else positions[END], groups)


class RowSearch:
    """The search for the end of JSON objects and lists in a row, as far as only separators are between them.

    Attributes:
        match: the marker that closes the row, or nothing where it ends.
        position: how far the text has been read.
    """

    def __init__(self, stream: TextStream, at: int, closing: Pattern | None) -> None:
        self.match: Match | None = None
        self.position = self._end = at
        self._stream, self._closing = stream, closing
        self._scanner: ValueScanner | None = None
        self._search: Search | None = None  # for the marker

    @property
    def certain_to(self) -> int:
        return self._end if self._scanner is None else self.position

    def advance(self, *, final: bool = False) -> None:
        """Read what the stream has. `final`: no text follows."""
        while self.match is None and self._search is None and self.position < self._stream.end:
            before = self.position
            self._read(*self._stream.chunk(before))
            self._stream.meter.examined += self.position - before
        if final and self._scanner is None and self._search is None:
            self._close()
        if self._search is not None and self.match is None:
            self._search.advance(final=final)
            if self._search.is_over:
                self.match = self._search.match or Match(self._end, self._end, {})

    def _read(self, chunk: str, index: int) -> None:
        if self._scanner is not None:
            self.position += self._scanner.take(chunk, index) - index
            if self._scanner.is_done:
                self._scanner, self._end = None, self.position
            return
        found = _NO_SEPARATOR.search(chunk, index)
        self.position += (len(chunk) if found is None else found.start()) - index
        if found is not None and found[0] in "[{":
            self._scanner = ValueScanner()
        elif found is not None:
            self._close()

    def _close(self) -> None:
        if self._closing is None:
            self.match = Match(self._end, self._end, {})
        else:
            self._search = Search(self._closing, self._stream, self._end, anchored=True)


class TokenMatcher:
    """Matches patterns at the reading position of a stream, which moves behind each match."""

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream
        self._search: Search | None = None

    def match(self, pattern: Pattern) -> Search:
        """The search for a token that begins here; to be asked for again with more text until it is over."""
        search = self._search
        if search is None or search.pattern is not pattern:
            search = self._search = Search(pattern, self._stream, self._stream.at, anchored=True)
        search.advance()
        if search.match is not None:
            self._stream.at = search.match.end
        if search.is_over:
            self._search = None
        return search


def find_all(pattern: Pattern, text: str) -> Iterator[Match]:
    """All matches in a whole text, without overlaps."""
    stream = TextStream(Meter())
    stream.push(text)
    at = 0
    while at <= len(text):
        search = Search(pattern, stream, at)
        search.advance(final=True)
        if search.match is None:
            return
        yield search.match
        at = search.match.end + (search.match.end == search.match.start)
