"""Numbers of a stream's events, by which a client says how many of them it has."""

from __future__ import annotations

from collections.abc import Iterator

from server.gateway.recording import numbered
from server.http.recorded import Cut, Head, uncut

_END = b"\n\n"  # of an event, or of a comment
_COMMENT = b":"


class Numbering:
    """Makes numbered events, one a piece, of a stream's parts. Comments are left out: they are for those who wait right now."""

    def __init__(self) -> None:
        self._count = 0
        self._rest = b""

    def __call__(self, part: bytes) -> Iterator[bytes]:
        *events, self._rest = (self._rest + part).split(_END)
        for event in events:
            if not event.startswith(_COMMENT):
                self._count += 1
                yield numbered(event + _END, self._count)


def cutting(head: Head) -> Cut:
    """Into events where there are any."""
    return Numbering() if head.is_stream else uncut
