"""A job's input is read twice: first whole, for its hash and the number of its lines."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from jaxserve.errors import ConfigError

_PIECE = 2**20  # bytes read at once

OnScan = Callable[[int, int], None]
"""(bytes read, bytes in all)"""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several parts of a file, of about as many bytes each: the lines that begin in it."""

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "i/n". Raises ConfigError."""
        index, _, count = text.partition("/")
        if not (index.isascii() and index.isdigit() and count.isascii() and count.isdigit() and 1 <= int(index) <= int(count)):
            raise ConfigError(f"shards must be i/n with 1 <= i <= n, such as 2/8, got {text!r}", param="shards")
        return cls(int(index), int(count))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def span(self, size: int) -> tuple[int, int]:
        """Where its lines begin in a file of `size` bytes: from the first offset on, before the second."""
        return size * (self.index - 1) // self.count, size * self.index // self.count


@dataclass(frozen=True, slots=True)
class Scan:
    """What a pass over an input found.

    Attributes:
        sha256: of the whole file, in hex.
        size: of the whole file, bytes.
        first: number of the shard's first line, from 1.
        lines: of the shard, blank ones among them.
    """

    sha256: str
    size: int
    first: int
    lines: int


def scan(file: BinaryIO, shard: Shard, on_scan: OnScan) -> Scan:
    size = os.fstat(file.fileno()).st_size
    begin, end = shard.span(size)
    # A line begins after each newline but one at the very end, and one at offset 0.
    marks = [max(begin - 1, 0), max(end - 1, 0), size]
    digest, newlines, seen, position = hashlib.sha256(), 0, [], 0
    for mark in marks:
        while position < mark:
            piece = file.read(min(_PIECE, mark - position))
            if not piece:
                raise ConfigError("the input became shorter while it was read", param="input")
            digest.update(piece)
            newlines += piece.count(b"\n")
            position += len(piece)
            on_scan(position, size)
        seen.append(newlines)
    before = seen[0] + (begin > 0)
    return Scan(digest.hexdigest(), size, before + 1, seen[1] + (end > 0) - before)


def first_offset(file: BinaryIO, begin: int, size: int) -> int:
    """Where the first line begins at or after an offset."""
    if begin == 0:
        return 0
    file.seek(begin - 1)
    position = begin - 1
    while position < size:
        piece = file.readline(min(_PIECE, size - position))
        position += len(piece)
        if not piece or piece.endswith(b"\n"):
            break
    return position
